"""Which operation went wrong, and on which line of the user's code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from types import FrameType

__all__ = ["blame", "compiled", "frames", "name_of", "outside", "where"]

INTERNAL = frozenset(
    {
        "contextlib",
        "copy",
        "copyreg",
        "functools",
        "multiprocessing",
        "pickle",
        "tensorplay_adapt",
        "tensorplay_core",
        "tensorplay_torch",
        "torch",
    }
)
"""Packages whose frames stand between the user's line and the operation."""
SUITE = "tensorplay_core.testing.suite."


def name_of(operation: object) -> str:
    """The name that errors and pictures call an operation by: ``"aten.mm"``."""
    return str(operation).removesuffix(".default")


def frames(thread: int | None = None) -> Iterator[FrameType]:
    """The calling thread's frames, innermost first, and after its last those of ``thread``.

    A backward pass on CUDA runs on a thread of autograd's own, where no frame is the user's: there
    the thread that captures, which waits for it, is what to look at.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
    frame = sys._current_frames().get(thread) if thread is not None else None
    while frame is not None:
        yield frame
        frame = frame.f_back


def where(thread: int | None = None) -> str:
    """``"file:line"`` of the innermost frame that is the user's; ``""`` if there is none.

    Args:
        thread: Identifier of the thread that captures; see ``frames``.
    """
    for frame in frames(thread):
        if outside(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return ""


def outside(frame: FrameType) -> bool:
    """True if the frame runs code of the user's."""
    return _is_users(str(frame.f_globals.get("__name__", "")))


@cache
def _is_users(module: str) -> bool:
    # The suite that core ships is a user like any other.
    return module.partition(".")[0] not in INTERNAL or module.startswith(SUITE)


def compiled() -> bool:
    """True if the call comes from a function that ``torch.compile`` made."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return False
    # Not by `frames`: this is asked at each operation, and the stack is deep.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (
            frame.f_code.co_name == "compile_wrapper"
            and frame.f_globals.get("__name__") == "torch._dynamo.eval_frame"
        ):
            return True
        frame = frame.f_back
    return False


def blame(error: BaseException, operation: object, thread: int | None = None) -> None:
    """Notes on ``error``, once, which operation raised it and where that was called."""
    if not any(note.startswith("while capturing ") for note in getattr(error, "__notes__", ())):
        place = where(thread)
        error.add_note(f"while capturing {name_of(operation)}{f' at {place}' if place else ''}")
