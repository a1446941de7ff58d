"""One at a time: who launches an executable, or changes it.

CUDA's graphs are not safe to use from two threads at once. A lock's ``with`` costs a twelfth of a
launch; taking the only token out of a queue and putting it back costs a fiftieth.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import starmap
from types import TracebackType

from tensorplay_core.compiled import make_token
from tensorplay_core.errors import ReplayError

__all__ = ["Turn"]


class Turn:
    """A token. It is not reentrant: who asks for it in the midst of having it is refused.

    ``with turn: ...`` is the plain way. ``take`` and ``give`` are for the hot path: ``take()``
    raises IndexError while somebody else has the token, then ``wait`` takes it. There a local
    ``mine`` says whether the token is the function's, and ``turn`` or ``take`` are in its reach::

        mine = True
        try:
            try:
                take()
            except IndexError:
                mine = False
                mine = wait()
            ...
        finally:
            if mine:
                give(None)
            mine = False

    Python looks for signals after a call into C, not before it: so an interrupt finds ``mine`` true
    from the moment on at which the token is taken.

    Args:
        subject: What errors call what it is the turn of.

    Attributes:
        token: The token, where the launch in C is built.
    """

    def __init__(self, subject: str = "a graph") -> None:
        # At most one: giving back what an interrupted `take` may or may not have taken is safe.
        self.token = made = make_token()
        queue: deque[None] = deque([None], maxlen=1)
        self.take: Callable[[], None] = queue.pop if made is None else made.take
        self.give: Callable[[None], None] = queue.append if made is None else made.give
        self._subject = subject
        self._owner: int | None = None

    def wait(self) -> bool:
        """Takes the token as soon as it is there; returns True.

        Raises:
            ReplayError: This thread has it: a finaliser or a signal handler asks.
        """
        pause = 0.0
        taken: list[None] = []
        try:
            while True:
                try:
                    # In one step of the interpreter, which notes what is taken before an interrupt
                    # can come.
                    taken.extend(starmap(self.take, ((),)))
                except IndexError:
                    if not pause and self._is_mine():
                        raise self._within() from None
                    # A launch takes microseconds, unless the device's queue is full.
                    time.sleep(pause)
                    pause = min(pause + 1e-5, 1e-3)
                else:
                    return True
        except BaseException:
            if taken:
                self.give(None)
            raise

    def __enter__(self) -> None:
        mine = False
        try:
            mine = self.wait()
            self._owner = threading.get_ident()
        except BaseException:
            if mine:
                self.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._owner = None
        self.give(None)

    def _is_mine(self) -> bool:
        """True if a function that called this one, through whatever ran in between, has it."""
        if self._owner == threading.get_ident():
            return True
        frame = sys._getframe(2)
        while frame.f_back is not None:
            frame = frame.f_back
            names = frame.f_code.co_varnames
            if "mine" in names:
                found = frame.f_locals
                if found.get("mine") and (
                    found.get("turn") is self or found.get("take") is self.take
                ):
                    return True
        return False

    def _within(self) -> ReplayError:
        return ReplayError(
            doing="replaying",
            subject=self._subject,
            met="this thread is in the midst of launching or changing it, and a finaliser or a "
            "signal handler asked for it from in there",
            remedy="Let such code note what is to be done and do it later.",
        )
