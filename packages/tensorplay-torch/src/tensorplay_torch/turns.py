"""Captures on CUDA take turns in a process, whatever their device.

torch's generators have one flag for a capture under way (until 2.13), and the wait for the device
that begins a capture would break one that another thread makes in global mode.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tensorplay_core.errors import CaptureError

__all__ = ["turn"]

_turn = threading.Lock()
_taker: int | None = None


@contextmanager
def turn(subject: str) -> Iterator[None]:
    """Holds the turn while entered; waits for another thread's capture to end.

    Raises:
        CaptureError: This thread has a capture under way.
    """
    global _taker
    if _taker == threading.get_ident():
        raise CaptureError(
            doing="beginning a capture",
            subject=subject,
            met="this thread has another capture under way",
            remedy="End that first, or capture both works into one graph.",
        )
    with _turn:
        _taker = threading.get_ident()
        try:
            yield
        finally:
            _taker = None
