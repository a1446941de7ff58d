"""One at a time: who launches an executable, or changes it.

CUDA's graphs are not safe to use from two threads at once. A lock's ``with`` costs a twelfth of a
launch; taking the only token out of a queue and putting it back costs a fiftieth.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

__all__ = ["Turn"]


class Turn:
    """A token. It is not reentrant.

    ``with turn: ...`` is the plain way. ``take`` and ``give`` are for the hot path: ``take()``
    raises IndexError while somebody else has the token, then ``wait`` takes it.
    """

    def __init__(self) -> None:
        # At most one: giving back what an interrupted `take` may or may not have taken is safe.
        token: deque[None] = deque([None], maxlen=1)
        self.take = token.pop
        self.give = token.append

    def wait(self) -> None:
        """Takes the token as soon as it is there."""
        pause = 0.0
        while True:
            try:
                self.take()
            except IndexError:
                # A launch takes microseconds, unless the device's queue is full.
                time.sleep(pause)
                pause = min(pause + 1e-5, 1e-3)
            else:
                return

    def __enter__(self) -> None:
        self.wait()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.give(None)
