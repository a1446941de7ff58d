"""Captures on CUDA take turns in a process, whatever their device.

torch's generators have one flag for a capture under way (until 2.13), and the wait for the device
that begins a capture would break one that another thread makes in global mode.
"""

from __future__ import annotations

import threading

from tensorplay_core.errors import CaptureError

__all__ = ["give", "refuse_second", "take", "taken"]

# Its owner is noted in one step with the taking: an interrupt cannot come between.
_turn = threading.RLock()


def refuse_second(stream: object) -> None:
    """Refuses a capture on ``stream`` beside another of this thread.

    Raises:
        CaptureError: This thread has a capture under way.
    """
    if taken():
        raise CaptureError(
            doing="beginning a capture",
            subject=f"on {stream}",
            met="this thread has another capture under way",
            remedy="End that first, or capture both works into one graph.",
        )


def take() -> None:
    """Takes the turn; waits for another thread's capture to end."""
    _turn.acquire()


def taken() -> bool:
    """True if this thread has it."""
    return _turn._is_owned()  # type: ignore[attr-defined, no-any-return]


def give() -> None:
    """Lets the next capture begin. Idempotent."""
    if taken():
        _turn.release()
