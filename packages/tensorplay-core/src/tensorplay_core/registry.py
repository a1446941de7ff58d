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

__all__ = [
    "Presence",
    "capturing_here",
    "close_all",
    "enter_capture",
    "last_captured",
    "leave_capture",
    "presence",
]


class Registered(Protocol):
    """A live graph, as the registry sees it."""

    def close(self) -> None:
        """Ends it for good."""
        ...

    def abandon(self, thread: str) -> None:
        """Discards its capture: the thread of that name, which made it, has ended."""
        ...


class Presence:
    """Stands for one thread that captures, and dies with it. Numbers of threads are used again.

    Attributes:
        name: The thread's name.
        stack: The graphs it is capturing, the innermost last.
    """

    __slots__ = ("__weakref__", "name", "stack")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stack: list[Registered] = []


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


def presence() -> Presence:
    """This thread's."""
    found: Presence | None = _here.__dict__.get("presence")
    if found is None:
        made = Presence(threading.current_thread().name)
        # A finaliser may have asked for it meanwhile: the first one made is the thread's.
        found = _here.__dict__.setdefault("presence", made)
        if found is made:
            # Run by the ending thread itself, with the last of it: a capture that only its own
            # thread may end can still be ended then. It holds the graphs, so that none dies
            # capturing.
            weakref.finalize(found, _thread_ended, found.name, found.stack).atexit = False
    return found


def _thread_ended(name: str, stack: list[Registered]) -> None:
    while stack:
        graph = stack[-1]
        try:
            graph.abandon(name)
        except Exception:
            log.exception("the capture of a thread that ended could not be discarded")
        if stack and stack[-1] is graph:
            del stack[-1]


def enter_capture(graph: Registered, thread: Presence) -> None:
    """A thread now captures ``graph``."""
    thread.stack.append(graph)


def leave_capture(graph: Registered, thread: Presence | None, *, completed: bool) -> None:
    """``graph`` is no longer captured by its thread (None: that has ended)."""
    global _last
    if thread is not None and graph in thread.stack:
        thread.stack.remove(graph)
    if completed:
        _last = weakref.ref(graph)


def capturing_here() -> list[Registered]:
    """The graphs this thread is capturing, the innermost last."""
    return list(presence().stack)


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
