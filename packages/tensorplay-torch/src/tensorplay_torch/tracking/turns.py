"""Captures on CUDA take turns in a process, whatever their device.

torch's generators have one flag for a capture under way (until 2.13), and the wait for the device
that begins a capture would break one that another thread makes in global mode.
"""

from __future__ import annotations

import threading
from itertools import starmap

from tensorplay_core.errors import CaptureError

__all__ = ["give", "is_free", "refuse_second", "take"]

_turn = threading.Lock()
_taker: int | None = None


def refuse_second(stream: object) -> None:
    """Refuses a capture on ``stream`` beside another of this thread.

    Raises:
        CaptureError: This thread has a capture under way.
    """
    if _taker == threading.get_ident():
        raise CaptureError(
            doing="beginning a capture",
            subject=f"on {stream}",
            met="this thread has another capture under way",
            remedy="End that first, or capture both works into one graph.",
        )


def take(taken: list[bool]) -> None:
    """Takes the turn; waits for another thread's capture to end.

    Args:
        taken: Empty; not so once the turn is taken, also if an interrupt comes then.
    """
    global _taker
    # In one step of the interpreter, which looks for interrupts after it.
    taken.extend(starmap(_turn.acquire, ((),)))
    _taker = threading.get_ident()


def give(taken: list[bool]) -> None:
    """Lets the next capture begin, if ``taken`` says that the turn is taken. Idempotent.

    In whichever thread: what a thread leaves behind may be ended in another.
    """
    global _taker
    if taken:
        _taker = None
        # The one and the other: an interrupt comes after a call, not before it.
        del taken[0]
        _turn.release()


def is_free() -> bool:
    """True if no thread captures."""
    return not _turn.locked()
