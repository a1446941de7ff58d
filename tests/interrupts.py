"""Ctrl-C at a moment of one's choice, for tests that try each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType


class Interrupt:
    """A profiler that raises KeyboardInterrupt at the n-th moment an interrupt can arrive.

    CPython looks for signals when a function begins and after a call into C; not before such a
    call, nor between the return of a Python function and the store of its result. What runs inside
    finalisers is left alone, since Python drops what they raise.

    Args:
        moment: Which one, from 1.
        files: Moments count in files whose path has one of these parts.
    """

    def __init__(self, moment: int, *files: str) -> None:
        self.left, self.files, self.where = moment, files, ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return"):
            return
        if not _counts(frame.f_code.co_filename, self.files):
            return
        self.left -= 1
        if self.left <= 0 and not in_finaliser(frame):
            self.where = f"{event} in {frame.f_code.co_qualname}, line {frame.f_lineno}"
            raise KeyboardInterrupt(self.where)

    @contextmanager
    def armed(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


@cache
def _counts(file: str, parts: tuple[str, ...]) -> bool:
    return any(part in file for part in parts)


def in_finaliser(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "_note", "_thread_ended"):
            return True
        frame = frame.f_back
    return False
