"""What must not happen during a capture is put off until none is live: destruction, collection.

Destroying a graph or freeing memory while a stream captures can break that capture, and Python
destroys whenever it likes. So destruction goes through ``dispose``, and the garbage collector is
held from the first live capture to the end of the last, then put back as it was.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["captures_live", "dispose", "drain", "hold", "release"]

log = logging.getLogger(__name__)

# Reentrant, because a finaliser may run inside any of these functions.
_lock = threading.RLock()
_pending: deque[Callable[[], object]] = deque()
_live = 0
_collecting = False


def captures_live() -> int:
    """How many captures are under way in this process."""
    return _live


def hold() -> None:
    """A capture begins: young garbage goes now, and no collection happens until ``release``.

    Only the young generations: a full collection before each capture is what made thousands of
    captures take minutes in other systems, and what it would find is disposed of safely anyway.
    """
    global _live, _collecting
    with _lock:
        first = _live == 0
    if first:
        gc.collect(1)
    with _lock:
        if _live == 0:
            _collecting = gc.isenabled()
            gc.disable()
        _live += 1


def release() -> None:
    """A capture ended, whichever way. The last one lets the disposals run."""
    global _live
    with _lock:
        _live -= 1
        if _live:
            return
        if _collecting:
            gc.enable()
    drain()


def dispose(destroy: Callable[[], object]) -> None:
    """Runs ``destroy`` now, or once no capture is live. It may be called from any thread."""
    with _lock:
        if _live:
            _pending.append(destroy)
            return
    destroy()


def drain() -> None:
    """Runs what ``dispose`` put off. One that raises is logged and does not stop the others."""
    while True:
        with _lock:
            if _live or not _pending:
                return
            destroy = _pending.popleft()
        try:
            destroy()
        except Exception:
            log.exception("a deferred destruction failed")
