"""Whether capturing pays: what it cost, what a step takes both ways, when it is ahead."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .capturing import Captured
from .recipe import Recipe

__all__ = ["Report", "report"]

ROUNDS, CALLS = 5, 10


@dataclass(frozen=True, kw_only=True)
class Report:
    """What ``step.report`` measured; times in seconds, memory in bytes.

    Attributes:
        capture_seconds: Warm-up and capture.
        eager_host_seconds: Of the host, for one eager step.
        captured_host_seconds: Of the host, for one call.
        eager_seconds: One eager step until the device is done.
        captured_seconds: One call until the device is done.
        device_seconds: Of the device alone, for one replay; None on the CPU.
        memory_bytes: Of the graph's pool.
        nodes: Of the graph, bodies included.
    """

    capture_seconds: float
    eager_host_seconds: float
    captured_host_seconds: float
    eager_seconds: float
    captured_seconds: float
    device_seconds: float | None
    memory_bytes: int
    nodes: int

    @property
    def speedup(self) -> float:
        """Eager over captured, until the device is done."""
        return self.eager_seconds / self.captured_seconds

    @property
    def break_even_steps(self) -> int | None:
        """After how many steps capturing has paid; None if it never does."""
        saved = self.eager_seconds - self.captured_seconds
        return int(self.capture_seconds / saved) + 1 if saved > 0 else None

    @property
    def verdict(self) -> str:
        """In a sentence."""
        if self.speedup < 1.05:
            bound = "the device" if self.device_seconds is not None else "the kernels"
            return f"not launch-bound ({bound} decides): expect about {self.speedup:.1f} ×"
        return (
            f"launch-bound: {self.speedup:.1f} × faster, ahead after {self.break_even_steps} steps"
        )

    def as_dict(self) -> dict[str, Any]:
        """All of it, for a log."""
        return asdict(self) | {
            "speedup": self.speedup,
            "break_even_steps": self.break_even_steps,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        micro = 1e6
        rows = [
            ("", "eager", "captured"),
            (
                "host, µs",
                f"{self.eager_host_seconds * micro:.1f}",
                f"{self.captured_host_seconds * micro:.1f}",
            ),
            (
                "a step, µs",
                f"{self.eager_seconds * micro:.1f}",
                f"{self.captured_seconds * micro:.1f}",
            ),
        ]
        if self.device_seconds is not None:
            rows.append(("device, µs", "", f"{self.device_seconds * micro:.1f}"))
        lines = [f"{name:12}{eager:>10}{captured:>10}" for name, eager, captured in rows]
        lines.append(
            f"captured in {self.capture_seconds * 1e3:.1f} ms, {self.nodes} nodes, "
            f"{self.memory_bytes / 2**20:.2f} MiB"
        )
        return "\n".join([*lines, self.verdict])

    def plot(self, path: str | None = None) -> Any:
        """Total time over the number of steps, both ways, with the point where capturing has paid.

        Args:
            path: Also save it there.

        Returns:
            The figure, of matplotlib.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from matplotlib.figure import Figure

        even = self.break_even_steps
        steps = [0, 2 * even if even is not None else 100]
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(steps, [n * self.eager_seconds for n in steps], label="eager")
        axes.plot(
            steps,
            [self.capture_seconds + n * self.captured_seconds for n in steps],
            label="captured",
        )
        if even is not None:
            axes.axvline(even, linestyle=":", color="grey")
            axes.annotate(f" {even} steps", (even, 0), color="grey")
        axes.set(xlabel="steps", ylabel="seconds", title=self.verdict)
        axes.legend()
        if path is not None:
            figure.savefig(path)
        return figure


def report(
    captured: Captured, recipe: Recipe, batch: tuple[Any, Any], call: Callable[[], object]
) -> Report:
    """Measures a step both ways. It trains: whoever calls puts everything back.

    Args:
        captured: The step.
        recipe: What it does eagerly.
        batch: Inputs and targets.
        call: A call of the step on them.
    """
    times = _measure(lambda: recipe.run(*batch), call, captured.graph.replay, recipe.device)
    return Report(
        capture_seconds=captured.seconds,
        memory_bytes=captured.graph.memory.reserved_bytes,
        nodes=captured.graph.topology.count(),
        **times,
    )


def _measure(
    eager: Callable[[], object],
    captured: Callable[[], object],
    replay: Callable[[], object],
    device: torch.device,
) -> dict[str, Any]:
    """Times, as ``Report`` takes them; medians of rounds in turn.

    Args:
        eager: One step.
        captured: One call.
        replay: The launch alone, by which the device is kept busy.
        device: Where it runs.
    """
    names = {"eager": eager, "captured": captured}
    host: dict[str, list[float]] = {name: [] for name in names}
    whole: dict[str, list[float]] = {name: [] for name in names}
    for function in names.values():
        function()
    for _ in range(ROUNDS):
        for name, function in names.items():
            _wait(device)
            began = time.perf_counter()
            for _ in range(CALLS):
                function()
            host[name].append((time.perf_counter() - began) / CALLS)
            _wait(device)
            whole[name].append((time.perf_counter() - began) / CALLS)
    return {
        f"{name}{kind}": statistics.median(times[name])
        for name in names
        for kind, times in (("_host_seconds", host), ("_seconds", whole))
    } | {"device_seconds": _on_device(replay) if device.type == "cuda" else None}


def _on_device(function: Callable[[], object]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(CALLS):
        function()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) * 1e-3 / CALLS


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
