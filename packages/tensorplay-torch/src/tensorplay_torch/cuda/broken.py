"""What torch raises when CUDA breaks a capture, as errors of the tree that say what to do."""

from __future__ import annotations

import re
from types import TracebackType

from tensorplay_core.errors import (
    CaptureError,
    CaptureInvalidated,
    DriverCallFailed,
    OperationRefused,
    UnjoinedWork,
)
from tensorplay_torch.tracking.culprit import name_of, outside, where

__all__ = ["WAITING", "broken", "of_block", "of_operation", "torch_failure"]

CODES = range(900, 909)
"""``cudaErrorStreamCapture...``."""
TEXT = re.compile("cudaErrorStreamCapture|capturing stream has unjoined work")
MERGE, UNJOINED, ISOLATION, IMPLICIT, EVENT = 902, 904, 905, 906, 907
ANOTHER_THREAD = " If another thread did it, pass capture_error_mode='thread_local'."
WAITING = (
    "Take what waits for the device or reads a value (.item(), .cpu(), print, synchronize) out of "
    "the capture, or find the earlier call whose exception was swallowed." + ANOTHER_THREAD
)
REMEDIES = {
    MERGE: "Let a stream wait only for events of its own capture: a side stream cannot serve two "
    "graphs, or a graph and the body of a conditional, at once.",
    UNJOINED: "Before the end, let the capture stream wait for each forked stream: "
    "torch.cuda.current_stream().wait_stream(side).",
    ISOLATION: "Do not wait inside a capture for events recorded before it; synchronise ahead of "
    "it.",
    IMPLICIT: "Keep off the default stream inside a capture: make side streams with "
    "torch.cuda.Stream(). If a backward pass did it, a result of an earlier forward is still held "
    "(a loss, say), and gradients go to its parameters on the stream of that forward: let it go "
    "(del loss), or use torch 2.13.",
    EVENT: "Synchronise with an event that is recorded outside, after the replay.",
}
# torch makes one handle of such a library a thread, at the first use.
HANDLE = re.compile(r"\b((?:cublas|cudnn|cufft|curand|cusolver|cusparse)\w*[cC]reate)\w*\(")


def broken(
    error: BaseException, subject: str, *, doing: str = "capturing", seen: str = ""
) -> CaptureError | None:
    """The error of the tree for what torch says of a broken capture; None for any other error.

    Args:
        error: What torch raised.
        subject: What it was raised about, a phrase.
        doing: What was being done, a gerund.
        seen: What else is known, a clause that begins with its own punctuation.
    """
    text = str(error)
    code = getattr(error, "error_code", None)
    if not isinstance(error, RuntimeError) or isinstance(error, CaptureError):
        return None
    if code not in CODES and not TEXT.search(text):
        return None
    met = f"{text.partition(chr(10))[0]}{seen}"
    if code == UNJOINED or "unjoined work" in text:
        return UnjoinedWork(doing=doing, subject=subject, met=met, remedy=REMEDIES[UNJOINED])
    return CaptureInvalidated(
        doing=doing, subject=subject, met=met, remedy=REMEDIES.get(code or 0, WAITING)
    )


def of_operation(error: Exception, operation: object, thread: int) -> CaptureError | None:
    """The same for an operation of a capture that ``thread`` makes, at the user's line.

    It also knows a library that torch failed to initialise, as it must inside a capture.
    """
    place = where(thread)
    subject = f"{name_of(operation)}{f' at {place}' if place else ''}"
    return broken(error, subject) or _unprepared(error, name_of(operation), place)


def of_block(error: BaseException | None) -> CaptureError | None:
    """The same for what left the block of a capture, at the line that its traceback shows."""
    if error is None:
        return None
    place = _place(error.__traceback__)
    return broken(error, f"work{f' at {place}' if place else ''}") or _unprepared(error, "", place)


def _unprepared(error: BaseException, operation: str, place: str) -> OperationRefused | None:
    found = HANDLE.search(str(error)) if type(error) is RuntimeError else None
    if found is None:
        return None
    return OperationRefused(
        operation=operation or found[1],
        where=place,
        met=f"torch calls {found[1]} at the first use of that library in each thread, which is "
        f"not permitted inside a capture ({str(error).partition(chr(10))[0]})",
        remedy="Run the work once before the capture, in this thread and with its backward pass, "
        "which runs on threads of torch's own.",
    )


def _place(trace: TracebackType | None) -> str:
    place = ""
    while trace is not None:
        if outside(trace.tb_frame):
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def torch_failure(call: str, subject: str, error: RuntimeError) -> DriverCallFailed:
    """A CUDA call that torch made and that failed, as an error of the tree."""
    code = getattr(error, "error_code", None)
    return DriverCallFailed(
        call=call,
        code=int(code) if code is not None else -1,
        code_name=type(error).__name__,
        meaning=str(error).partition("\n")[0],
        subject=subject,
        remedy="If the message speaks of an earlier kernel, find that with CUDA_LAUNCH_BLOCKING=1.",
    )
