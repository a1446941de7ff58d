"""Captures on CUDA take turns in a process, whatever their device.

torch's generators have one flag for a capture under way (until 2.13), and the wait for the device
that begins a capture would break one that another thread makes in global mode.
"""

from __future__ import annotations

import threading

from tensorplay_core.errors import CaptureError

__all__ = ["give", "take"]

_turn = threading.Lock()
_taker: int | None = None


def take(stream: object) -> None:
    """Takes the turn; waits for another thread's capture to end.

    Args:
        stream: What the capture is to run on.

    Raises:
        CaptureError: This thread has a capture under way.
    """
    global _taker
    if _taker == threading.get_ident():
        raise CaptureError(
            doing="beginning a capture",
            subject=f"on {stream}",
            met="this thread has another capture under way",
            remedy="End that first, or capture both works into one graph.",
        )
    _turn.acquire()
    _taker = threading.get_ident()


def give() -> None:
    """Lets the next capture begin."""
    global _taker
    _taker = None
    _turn.release()
