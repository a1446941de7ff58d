"""Counts and times the control calls of a driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from tensorplay_core.hookspecs import PROJECT, hookimpl
from tensorplay_core.runtime import NOUNS

__all__ = ["CallStatistics", "StatisticsObserver"]


@dataclass(slots=True)
class CallStatistics:
    """Calls of one hook: how many, how many raised, and their time together in seconds."""

    calls: int = 0
    failures: int = 0
    seconds: float = 0.0


class StatisticsObserver:
    """Statistics of every hook called, by hook name without its prefix.

    Attributes:
        calls: One ``CallStatistics`` a hook. Launches are not among them: they make no hook call.
    """

    def __init__(self) -> None:
        self.calls: dict[str, CallStatistics] = {}
        # Reentrant, because a finaliser that ends a graph may run in the midst of its holder.
        self._lock = threading.RLock()

    def add(self, hook: str, seconds: float, *, failed: bool) -> None:
        """Adds one call."""
        with self._lock:
            entry = self.calls.setdefault(hook, CallStatistics())
            entry.calls += 1
            entry.failures += failed
            entry.seconds += seconds


def _counted(hook: str) -> Callable[[StatisticsObserver], Generator[None, Any, Any]]:
    @hookimpl(wrapper=True, specname=f"{PROJECT}_{hook}")
    def watch(self: StatisticsObserver) -> Generator[None, Any, Any]:
        began = time.perf_counter()
        failed = True
        try:
            result = yield
            failed = False
        finally:
            self.add(hook, time.perf_counter() - began, failed=failed)
        return result

    return watch


for _hook in (hook for hooks in NOUNS.values() for hook in hooks):
    setattr(StatisticsObserver, f"{PROJECT}_{_hook}", _counted(_hook))
