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
_live: set[object] = set()
_collecting = False


def captures_live() -> int:
    """How many captures are under way in this process."""
    return len(_live)


def hold(capture: object) -> None:
    """A capture begins: young garbage goes now, and no collection happens until ``release``.

    Only the young generations: a full collection before each capture is what made thousands of
    captures take minutes in other systems, and what it would find is disposed of safely anyway.

    Args:
        capture: Stands for it; hashable, and equal to no other.
    """
    global _collecting
    if not _live:
        gc.collect(1)
    with _lock:
        if _live:
            _live.add(capture)
        else:
            _collecting = gc.isenabled()
            # Noted before it is done: an interrupt in between leaves what `release` undoes.
            _live.add(capture)
            gc.disable()


def release(capture: object) -> None:
    """The capture ended, whichever way. The last one lets the disposals run. Idempotent."""
    with _lock:
        if _collecting and _live == {capture}:
            gc.enable()
        _live.discard(capture)
        if _live:
            return
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
    while _pending:
        with _lock:
            if _live or not _pending:
                return
            # No calls: an interrupt cannot come in between and lose it.
            destroy = _pending[0]
            del _pending[0]
        try:
            destroy()
        except Exception:
            log.exception("a deferred destruction failed")
        except BaseException:
            _pending.appendleft(destroy)
            raise
