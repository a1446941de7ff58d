"""Which graphs are alive, which of them this thread is capturing, which was captured last."""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import weakref
from typing import Protocol

from . import reclaim
from .errors import TensorplayError

__all__ = ["capturing_here", "close_all", "enter_capture", "last_captured", "leave_capture"]


class Registered(Protocol):
    """A live graph, as the registry sees it."""

    def close(self) -> None:
        """Ends it for good."""
        ...


log = logging.getLogger(__name__)
_serials = itertools.count(1)
_graphs: dict[int, weakref.ref[Registered]] = {}
_here = threading.local()
_last: weakref.ref[Registered] | None = None


def register(graph: Registered) -> int:
    """Adds a graph, weakly, and gives it its serial number."""
    serial = next(_serials)
    _graphs[serial] = weakref.ref(graph, lambda _: _graphs.pop(serial, None))
    return serial


def live() -> list[Registered]:
    """Every graph that is alive, oldest first."""
    return [graph for ref in list(_graphs.values()) if (graph := ref()) is not None]


def enter_capture(graph: Registered) -> None:
    """This thread now captures ``graph``."""
    stack = _here.__dict__.setdefault("stack", [])
    stack.append(graph)


def leave_capture(graph: Registered, *, completed: bool) -> None:
    """``graph`` is no longer captured by this thread; a completed one is the last captured."""
    global _last
    stack = _here.__dict__.get("stack", [])
    if graph in stack:
        stack.remove(graph)
    if completed:
        _last = weakref.ref(graph)


def capturing_here() -> list[Registered]:
    """The graphs this thread is capturing, the innermost last."""
    return list(_here.__dict__.get("stack", []))


def last_captured() -> Registered | None:
    """The graph whose capture completed last, if it is still alive."""
    return _last() if _last is not None else None


def close_all() -> None:
    """Closes every live graph, newest first. Safe at interpreter exit; idempotent.

    A graph that another thread is capturing cannot be closed from here; it is left, and logged.
    """
    for graph in reversed(live()):
        try:
            graph.close()
        except TensorplayError:
            log.exception("a graph could not be closed")
    reclaim.drain()


atexit.register(close_all)
