"""cuFFT plans inside captures: a graph takes the plan it uses, and work space with it.

CuPy keeps plans in a cache for each thread and device. Making one inside a capture is illegal (for
some lengths it ends the process), and one that stayed in the cache would share its work space with
eager transforms and go when the cache is full. So a capture takes the plan out of the cache, and
when it has ended a fresh one takes its place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cupy
from cupy.fft import _fft

from tensorplay_core.errors import OperationRefused

from .refusals import caller

if TYPE_CHECKING:
    from .captures import CupyCapture

__all__ = ["Plans", "watch"]

log = logging.getLogger(__name__)
_lock = threading.Lock()
_watched = False
# Plans with callbacks have longer keys, and are not to be made anew from them.
_PLAIN = (4, 12)


class Plans:
    """The plans that one capture has taken.

    Attributes:
        taken: They are the graph's.
    """

    def __init__(self) -> None:
        self.taken: list[Any] = []
        # By the key of the cache and what CuPy's current stream is of the capture.
        self._by_lane: dict[tuple[object, ...], Any] = {}
        self._from: list[tuple[Any, tuple[Any, ...], Any]] = []

    def take(self, cache: Any, key: tuple[Any, ...], lane: object) -> Any:
        """The plan of ``key`` for work on ``lane``: the capture's own, from now on.

        Raises:
            OperationRefused: The cache has none, or it cannot be taken.
        """
        own = self._by_lane.get((lane, *key))
        if own is not None:
            return own
        plan = cache.get(key)
        if plan is None:
            raise _refused(
                "the plan of this transform is not in CuPy's cache, or another stream of the "
                "capture uses it, and plans cannot be made inside a capture",
                "Run the transform once before the capture, in this thread, with the same shape, "
                "dtype and axes; on one stream of a capture only.",
            )
        if len(key) not in _PLAIN or plan.gpus is not None:
            raise _refused(
                "the plan has callbacks or spans several GPUs, and no second one can be made for "
                "eager transforms",
                "Pass a plan of your own (plan=), and keep it: g.retain(plan).",
            )
        del cache[key]
        self._by_lane[lane, *key] = plan
        self._from.append((cache, key, plan))
        self.taken.append(plan)
        return plan

    def settle(self, *, kept: bool) -> None:
        """The capture is over: fills the places in the cache; with ``kept`` by fresh plans."""
        places, self._from, self.taken = self._from, [], []
        self._by_lane.clear()
        for cache, key, plan in places:
            try:
                cache[key] = _made(key) if kept else plan
            except (RuntimeError, MemoryError):
                # The next eager transform makes one, or says why it cannot.
                log.warning("no fresh cuFFT plan could be made beside the graph's", exc_info=True)


class _Cache:
    """A plan cache as a capture sees it."""

    def __init__(self, cache: Any, capture: CupyCapture) -> None:
        self._cache, self._capture = cache, capture

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        root = self._capture.root
        if root.adopted:
            raise _refused(
                "another library began the capture, so no graph of ours can own the plan",
                "Begin the capture with tensorplay_cupy.graph().",
            )
        lane = self._capture.lane(int(cupy.cuda.get_current_stream().ptr))
        return root.plans.take(self._cache, key, lane)


def watch(innermost: Callable[[], CupyCapture | None]) -> None:
    """From now on transforms inside captures take their plans; ``innermost`` tells which one."""
    global _watched
    with _lock:
        if _watched:
            return
        _watched = True
    original: Callable[[], Any] = _fft.get_plan_cache

    def get_plan_cache() -> Any:
        capture = innermost()
        return original() if capture is None else _Cache(original(), capture)

    _fft.get_plan_cache = get_plan_cache


def _made(key: tuple[Any, ...]) -> Any:
    cufft = cupy.cuda.cufft  # Loaded by the transform that made the first one.
    if len(key) == 4:
        size, kind, batch, devices = key
        return cufft.Plan1d(size, kind, batch, devices=devices)
    return cufft.PlanNd(*key)


def _refused(met: str, remedy: str) -> OperationRefused:
    return OperationRefused(operation="a cuFFT transform", where=caller(), met=met, remedy=remedy)
