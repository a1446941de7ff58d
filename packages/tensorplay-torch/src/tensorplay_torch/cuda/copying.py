"""Copies around the launches of a graph: one call at a time, each after all before it.

CUDA orders the launches of one executable whatever their streams, and not the copies around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tensorplay_torch.resources.turns import OwnTurn

__all__ = ["Copying"]


class Copying:
    """See the module.

    Args:
        current: Returns the handle of the current stream.

    Attributes:
        turn: Taken for each call.
        where: The stream on which all was enqueued last, where that is known.
    """

    def __init__(self, current: Callable[[], int]) -> None:
        self.turn = OwnTurn()
        self.where: int | None = None
        self._current = current
        self._done: torch.cuda.Event | None = None

    @contextmanager
    def around(self, subject: object, doing: str, follow: Callable[[], object]) -> Iterator[None]:
        """This thread's turn to copy in, launch and copy out on the current stream.

        Args:
            subject: What errors call by its representation.
            doing: What is done, as errors say it.
            follow: Makes the current stream wait for launches that this was not told of.

        Raises:
            ReplayError: This thread is in the midst of such a call.
        """
        with self.turn.taken(subject, doing):
            here = self._current()
            if here != self.where:
                if self._done is not None:
                    self._done.wait()
                follow()
            try:
                yield
            finally:
                if self._done is None:
                    self._done = torch.cuda.Event()
                self._done.record()
                self.where = here

    def launched(self, where: int) -> None:
        """A launch was made beside that, on a stream."""
        if where != self.where:
            self.where = None
