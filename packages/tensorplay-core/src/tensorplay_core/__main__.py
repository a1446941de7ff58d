"""``python -m tensorplay_core``: the drivers, whether each works here, and what each can."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from . import discovery
from .errors import TensorplayError
from .runtime import NOUNS, Runtime

PACKAGES = (
    "tensorplay-core",
    "tensorplay-torch",
    "tensorplay-adapt",
    "tensorplay-cupy",
    "pluggy",
    "cuda-bindings",
    "torch",
)


def report() -> str:
    """The text that is printed."""
    lines = [f"tensorplay on Python {platform.python_version()}, {platform.platform()}", ""]
    lines += [f"  {name:<18} {_version(name)}" for name in PACKAGES]
    lines += ["", "drivers, the automatic choice first:"]
    for found in discovery.find_drivers():
        lines += ["", f"  {found.name} (priority {found.priority})", *_about(found)]
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


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


if __name__ == "__main__":
    print(report())
