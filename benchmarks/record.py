"""What one benchmark says: numbers, the goal, and what they were measured on, all found by code."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import pathlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timing import Timing

Record = dict[str, Any]
MEBI = 2**20
COMPILED = {
    "launch in C": "tensorplay_core.compiled",
    "compiled parts": "tensorplay_torch.compiled",
}
PACKAGES = (
    "tensorplay-core",
    "torch",
    "cuda-bindings",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "nvmath-python",
    "jax",
)


@dataclass(frozen=True)
class Goal:
    """`ours` is at most `factor` times `against`: the floor, a peer, or (None) one of the unit."""

    factor: float
    against: str | None = "floor"
    faster: float | None = None

    def said(self, unit: str) -> str:
        """In words; `unit` is that of a plain number."""
        if self.faster is not None:
            return f"≥ {self.faster:g} × faster than {self.against}"
        return f"≤ {self.factor:g} " + (f"× {self.against}" if self.against else unit)

    def reference(self, floor: float | None, peers: Mapping[str, float]) -> float:
        """What `factor` multiplies."""
        if self.against is None:
            return 1.0
        if self.against == "floor":
            if floor is None:
                raise ValueError("a goal needs a floor, and none was measured")
            return floor
        return peers[self.against]


def at_most(factor: float, against: str | None = "floor") -> Goal:
    return Goal(factor, against)


def faster(times: float, than: str) -> Goal:
    return Goal(1 / times, than, times)


def record(
    name: str,
    measured: Mapping[str, Timing | float],
    *,
    unit: str,
    goals: Sequence[Goal] = (),
    note: str = "",
) -> Record:
    """One record.

    Args:
        measured: `"ours"`, perhaps `"floor"`, and peers by their labels.
        goals: All must be met. `ratio` is `ours` over what the first compares it with.
    """
    value = {
        label: one.median if isinstance(one, Timing) else one for label, one in measured.items()
    }
    ours, floor = value.pop("ours"), value.pop("floor", None)
    against = [goal.reference(floor, value) for goal in goals]
    spread = ", ".join(
        f"{label} {one.low:.4g}–{one.high:.4g}"
        for label, one in measured.items()
        if isinstance(one, Timing)
    )
    return {
        "name": name,
        "unit": unit,
        "ours": ours,
        "floor": floor,
        "peers": value,
        "ratio": ours / against[0] if goals and goals[0].against else None,
        "goal": " and ".join(goal.said(unit) for goal in goals),
        "met": all(ours <= g.factor * base for g, base in zip(goals, against, strict=True))
        if goals
        else None,
        "versions": versions(),
        "gpu": gpus()[0] if gpus() else None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "note": "; ".join(part for part in (note, f"rounds: {spread}" if spread else "") if part),
    }


@functools.cache
def versions() -> dict[str, str]:
    """Python, the packages that are there, the GPU's driver and the sources' commit."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name, module in COMPILED.items():
        if compiled := sys.modules.get(module):
            found[name] = compiled.summary()
    if lines := _lines("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"):
        found["driver"] = lines[0]
    here = str(pathlib.Path(__file__).parent)
    if commit := _lines("git", "-C", here, "describe", "--always", "--dirty", "--exclude=*"):
        found["commit"] = commit[0]
    return found


@functools.cache
def gpus() -> list[str]:
    """The names of the GPUs, as their driver gives them."""
    return _lines("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")


@functools.cache
def cpu() -> str:
    """The processor's name, for the notes of what runs on it."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _lines(program: str, *arguments: str) -> list[str]:
    path = shutil.which(program)
    if path is None:
        return []
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []
