"""Small pools that ended, with the memory and the stream they had, for captures to come.

The first allocation of a fresh pool of torch's asks CUDA for memory, and the next capture could not
have it back: torch keeps the pools of its graphs apart. That costs more than all else of a capture
of a small model, so one small pool a device goes from graph to graph, with the work space that
cuBLAS has in it. No race comes of it: a capture begins by waiting for the device.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import NamedTuple

import torch

from tensorplay_torch.resources.memory import is_idle
from tensorplay_torch.resources.pools import Native, TorchPool
from tensorplay_torch.resources.streams import Lane

__all__ = ["OneSpare"]

SEGMENT = 2 << 20
"""Bytes of the segments that torch serves small tensors from."""
SHARE = 2048
"""No more than this part of a device's memory is kept: 70 MiB of an H200, where cuBLAS takes 32."""


@cache
def _most(device: torch.device) -> int:
    _, total = torch.cuda.mem_get_info(device)
    return max(SEGMENT, total // SHARE)


class _Spare(NamedTuple):
    native: Native
    lane: Lane
    last: torch.cuda.CUDAGraph


class OneSpare:
    """Keeps one pool a device."""

    def __init__(self) -> None:
        self._kept: dict[torch.device, _Spare] = {}
        # Reentrant, because a finaliser that ends a graph may run in the midst of its holder.
        self._lock = threading.RLock()

    def keep(self, pool: TorchPool, last: torch.cuda.CUDAGraph) -> bool:
        """Takes what ``pool`` has, with the graph that keeps it; False if it does not want it.

        It takes a private pool of one capture stream in which nothing is alive, and no more than a
        small share of the device's memory. Idempotent.
        """
        kept = self._kept.get(pool.device)
        if kept is None and (spare := self._wanted(pool, last)) is not None:
            with self._lock:
                kept = self._kept.setdefault(pool.device, spare)
        if kept is None or kept.last is not last:
            return False
        pool.lanes.pop(0, None)
        return True

    def _wanted(self, pool: TorchPool, last: torch.cuda.CUDAGraph) -> _Spare | None:
        lane = pool.lanes.get(0)
        if lane is None or pool.native is None or pool.former or pool.bodies:
            return None
        if pool.spoilt or pool.tied:
            return None
        if not is_idle(pool.native, pool.device, most=_most(pool.device)):
            return None
        return _Spare(pool.native, lane, last)

    def give(self, pool: TorchPool) -> None:
        """Gives a new pool what was taken, if there is anything."""
        with self._lock:
            spare = self._kept.get(pool.device)
            if spare is None:
                return
            # In this order: an interrupt leaves it here, and the new pool is nobody's then.
            pool.native, pool.lanes[0], pool.last = spare.native, spare.lane, spare.last
            del self._kept[pool.device]
