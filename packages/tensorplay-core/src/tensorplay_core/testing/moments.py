"""What runs in the midst of a call, as a finaliser does that the garbage collector runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

__all__ = ["Moments", "in_a_thread"]

Result = TypeVar("Result")
PATIENCE = 60.0
"""Seconds after which work is taken to wait for itself."""


class Moments:
    """A profiler that acts once, at the n-th moment at which Python may collect garbage.

    Python does so where a function begins and after a call into C.

    Attributes:
        first: The first moment at each place that was met: a line of the packages' code, and each
            function that the packages' code calls.
        where: The place at which it acted.
    """

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.first: dict[tuple[object, int], int] = {}
        self.where = ""
        self._number, self._act, self._seen = number, act, 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """As ``sys.setprofile`` calls it."""
        if event not in ("call", "c_return"):
            return
        self._seen += 1
        if _is_ours(frame):
            self.first.setdefault((frame.f_code, frame.f_lineno), self._seen)
        elif frame.f_back is not None and _is_ours(frame.f_back):
            self.first.setdefault((frame.f_code, 0), self._seen)
        if self._seen == self._number:
            sys.setprofile(None)
            self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            self._act()


def _is_ours(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith("tensorplay_") and name != __name__


def in_a_thread(work: Callable[[], Result], moments: Moments) -> Result:
    """What ``work`` returns, run under ``moments`` in a thread that is given up on if it hangs.

    Raises:
        TimeoutError: It did not end.
        BaseException: What it raised.
    """
    found: list[Any] = []

    def run() -> None:
        sys.setprofile(moments)
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not found:
        raise TimeoutError(f"it waits for itself since {moments.where}")
    ((result, error),) = found
    if error is not None:
        error.add_note(f"a finaliser ran in {moments.where}")
        raise error
    return result  # type: ignore[no-any-return]
