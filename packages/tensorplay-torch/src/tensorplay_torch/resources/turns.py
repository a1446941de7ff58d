"""Turns of executables: what asks for one in the midst of its own turn is refused."""

from __future__ import annotations

import threading

from tensorplay_core.errors import ReplayError

__all__ = ["CLOSED", "OwnTurn", "within"]

CLOSED = -1
"""The revision of an executable that is closed."""


class OwnTurn:
    """Of one executable: a thread has it once, and others wait for it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def taken(self, subject: object, doing: str) -> threading.RLock:
        """What this thread enters to have it.

        Raises:
            ReplayError: It has it already.
        """
        lock = self._lock
        if lock._is_owned():  # type: ignore[attr-defined]
            raise within(repr(subject), doing=doing)
        return lock


def within(subject: str, *, doing: str) -> ReplayError:
    """The error for code that runs in the midst of a call and makes another."""
    return ReplayError(
        doing=doing,
        subject=subject,
        met="this thread is in the midst of a call of it, and its own work, a finaliser or a "
        "signal handler called it from in there: both would work on the same buffers",
        remedy="Let such code note what is to be done and do it later, or use another graph.",
    )
