"""``python -m tensorplay_core``: the drivers, whether each works here, and what each can."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from . import discovery
from .errors import TensorplayError
from .runtime import NOUNS, Runtime

ABSENT = "not installed"
CUPY = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")
PACKAGES = (
    "tensorplay-core",
    "tensorplay-torch",
    "tensorplay-adapt",
    "tensorplay-cupy",
    "pluggy",
    "cuda-bindings",
    "torch",
    "numpy",
    "nvmath-python",
    *CUPY,
)


def report() -> str:
    """The text that is printed."""
    lines = [f"tensorplay on Python {platform.python_version()}, {platform.platform()}", ""]
    versions = {name: _version(name) for name in PACKAGES}
    lines += [
        f"  {name:<18} {found}"
        for name, found in versions.items()
        if found != ABSENT or name not in CUPY
    ]
    lines += ["", _choice(), "", "drivers, by priority:"]
    for found in discovery.find_drivers():
        lines += ["", f"  {found.name} (priority {found.priority})", *_about(found)]
    return "\n".join(lines)


def _choice() -> str:
    asked = os.environ.get("TENSORPLAY_DRIVER")
    how = f"TENSORPLAY_DRIVER={asked}" if asked else "the highest priority that is viable"
    try:
        return f"where no other is named: driver {discovery.choose().name!r}, by {how}"
    except TensorplayError as error:
        return f"where no other is named: none, by {how}: {error.met}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ABSENT


def _about(found: discovery.Found) -> list[str]:
    if found.reason is not None or found.card is None:
        return [f"    not viable: {found.reason}"]
    try:
        runtime = Runtime(found.card.load(), name=found.name)
        facts = runtime.describe()
        nouns = runtime.nouns()
    except TensorplayError as error:
        return [f"    viable, but failed: {error}"]
    lines = ["    viable"]
    for noun, hooks in NOUNS.items():
        missing = sorted(set(hooks) - set(nouns[noun]))
        lacking = f", lacks {', '.join(missing)}" if missing else ""
        lines.append(f"    {noun:<12} {len(nouns[noun])} of {len(hooks)} hooks{lacking}")
    return lines + [f"    {name}: {value}" for name, value in facts.items()]


def main() -> int:
    """Prints the report."""
    if len(sys.argv) > 1:
        asks = sys.argv[1:] in (["-h"], ["--help"])
        print(f"usage: python -m tensorplay_core\n\n{__doc__}", file=None if asks else sys.stderr)
        return 0 if asks else 2
    try:
        print(report(), flush=True)
    except BrokenPipeError:  # As of `| head`; what is left unwritten would complain at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
