"""Who has the turn of an executable: what asks for it in the midst of its own turn is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tensorplay_core.errors import ReplayError

__all__ = ["holder", "within"]


def holder(turn: threading.RLock) -> Callable[[], bool]:
    """What says whether this thread has the turn."""
    owned: Callable[[], bool] = turn._is_owned  # type: ignore[attr-defined]
    return owned


def within(subject: str, *, doing: str = "replaying") -> ReplayError:
    """The error for code that runs in the midst of a call and makes another."""
    return ReplayError(
        doing=doing,
        subject=subject,
        met="this thread is in the midst of a call of it, and its own work, a finaliser or a "
        "signal handler called it from in there: both would work on the same buffers",
        remedy="Let such code note what is to be done and do it later, or use another graph.",
    )
