"""What torch holds for a pool: its statistics, the addresses that are its own, whether it is idle.

torch is asked for one pool at a time, or for everything it would copy thousands of blocks. Up to
2.14 it then drops references to the numbers of the pool's id that it was only lent (pytorch pull
request 196366), which ends the process once they are gone: it is lent numbers that can spare them.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import torch

from tensorplay_core.protocols import PoolStatistics

from .devices import index_of
from .pools import Native, TorchPool

__all__ = ["Segments", "is_idle", "read_statistics", "segments_of"]

SPARED = 8
"""References that torch may drop in one call, and more."""
SHARED = 256
"""Of integers up to here Python has one object each."""
TRACES = (
    {"include_traces": False}
    if "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters
    else {}
)


def read_statistics(pool: TorchPool) -> PoolStatistics:
    """Memory of a pool now.

    On CUDA, what torch's allocator holds for the pool and for the bodies captured into it;
    ``peak_bytes`` is the most that a reading found. On the CPU, the storages of outputs of captured
    work: reserved are those that graphs or tensors hold, allocated those that tensors do, and
    ``peak_bytes`` is the most at the end of a capture or at a reading.
    """
    if pool.arena is not None:
        reserved, sizes = pool.arena.reserved, pool.arena.allocated
        pool.peak = max(pool.peak, pool.arena.peak_bytes, sum(sizes))
        return PoolStatistics(sum(reserved), sum(sizes), pool.peak, len(sizes))
    segments = _segments(pool, pool.bodies)
    allocated = sum(segment["allocated_size"] for segment in segments)
    pool.peak = max(pool.peak, allocated)
    return PoolStatistics(
        reserved_bytes=sum(segment["total_size"] for segment in segments),
        allocated_bytes=allocated,
        peak_bytes=pool.peak,
        allocation_count=sum(
            block["state"] == "active_allocated"
            for segment in segments
            for block in segment["blocks"]
        ),
    )


class Segments:
    """What a pool holds now, and what was allocated for bodies from ``begun``, as addresses."""

    def __init__(self, pool: TorchPool, begun: Iterable[Native]) -> None:
        spans = sorted(
            (int(segment["address"]), int(segment["address"] + segment["total_size"]))
            for segment in _segments(pool, begun)
        )
        self._starts = [start for start, _ in spans]
        self._stops = [stop for _, stop in spans]

    def __contains__(self, address: object) -> bool:
        """True if the address is in memory of the pool."""
        if not isinstance(address, int):
            return False
        place = bisect_right(self._starts, address) - 1
        return place >= 0 and address < self._stops[place]


def is_idle(native: Native, device: torch.device, *, most: int) -> bool:
    """True if a pool's id has no live allocation, and no more than ``most`` bytes in reserve."""
    found = segments_of(native, device)
    reserved = sum(segment["total_size"] for segment in found)
    # Active are also blocks that were freed and that torch waits for a stream to reuse.
    return reserved <= most and not any(segment["active_size"] for segment in found)


def segments_of(native: Native, device: torch.device) -> list[dict[str, Any]]:
    """What torch's allocator holds on ``device`` for the id of a pool."""
    # Objects of our own: the id's are others' as well. Python shares those of the smallest numbers.
    lent = [int(str(number)) for number in native]
    counted = [number for number in lent if number > SHARED]
    for number in counted:
        _spare(number, SPARED)
    for number in (*(one for one in lent if one <= SHARED), False):
        _spare(number, 1)
    before = [sys.getrefcount(number) for number in counted]
    try:
        found: list[dict[str, Any]] = torch.cuda.memory_snapshot((lent[0], lent[1]), **TRACES)
    finally:
        after = [sys.getrefcount(number) for number in counted]
        for number, was, now in zip(counted, before, after, strict=True):
            for _ in range(SPARED - (was - now)):
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(number))
    index = index_of(device)
    return [segment for segment in found if segment["device"] == index]


def _spare(number: int, references: int) -> None:
    for _ in range(references):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(number))


def _segments(pool: TorchPool, more: Iterable[Native]) -> list[dict[str, Any]]:
    if pool.native is None or not pool.used:
        return []  # torch does not know the id yet.
    return [
        segment
        for native in {pool.native, *pool.former, *more}
        for segment in segments_of(native, pool.device)
    ]
