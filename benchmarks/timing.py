"""How the benchmarks time: contenders take turns in rounds, and the median of the rounds counts.

A contender is a function that makes `n` calls and returns the seconds they took. Taking turns lets
a drift of the machine (clocks, temperature, neighbours) fall on all of them alike, so that ratios
hold within a run where absolute times do not between runs.
"""

from __future__ import annotations

import gc
import statistics
import time
import timeit
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Contender = Callable[[int], float]


class Timing(NamedTuple):
    """Time of one call, over the rounds."""

    median: float
    low: float
    high: float

    def scaled(self, factor: float) -> Timing:
        return Timing(self.median * factor, self.low * factor, self.high * factor)


def statement(code: str, **names: Any) -> Contender:
    """A line of Python as a user would write it, in a loop that costs about 10 ns a turn."""
    return timeit.Timer(code, globals=names).timeit


def until_done(contender: Contender) -> Contender:
    """What the same calls take until the GPU has done them, by the host's clock."""
    import torch

    def whole(calls: int) -> float:
        began = time.perf_counter()
        contender(calls)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return whole


def on_device(contender: Contender) -> Contender:
    """What the same calls take on the GPU, by events around them on torch's current stream."""
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def between(calls: int) -> float:
        before.record()
        contender(calls)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) * 1e-3

    return between


def microseconds(
    contenders: Mapping[str, Contender],
    *,
    synchronize: Callable[[], object],
    calls: int = 200,
    batches: int = 10,
    rounds: int = 11,
) -> dict[str, Timing]:
    """Microseconds of one call of each contender.

    Args:
        synchronize: Waits for the device. Called before each batch, outside its time, so that no
            batch meets a full launch queue.
        calls: In a batch. So few that the queue does not fill.
        batches: Of each contender in a round.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in order:
                contender = contenders[name]
                contender(max(1, calls // 10))
                seconds = 0.0
                for _ in range(batches):
                    synchronize()
                    seconds += contender(calls)
                taken[name].append(seconds / (calls * batches) * 1e6)
            synchronize()
            order.append(order.pop(0))  # Nobody always comes first, or after the same other.
    finally:
        if collecting:
            gc.enable()
    return {
        name: Timing(statistics.median(times), min(times), max(times))
        for name, times in taken.items()
    }
