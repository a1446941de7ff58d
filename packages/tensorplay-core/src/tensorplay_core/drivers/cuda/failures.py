"""What the CUDA driver's result codes mean here, and which typed error each becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorplay_core.errors import (
    CaptureError,
    CaptureInvalidated,
    DriverCallFailed,
    PoolExhausted,
    TensorplayError,
    UnjoinedWork,
)

__all__ = [
    "CAPTURE_UNSUPPORTED",
    "INVALID_CONTEXT",
    "NOT_READY",
    "OUT_OF_MEMORY",
    "UPDATE_FAILURE",
    "code_name",
    "failure",
]

OUT_OF_MEMORY = 2
INVALID_CONTEXT = 201
NOT_READY = 600
CAPTURE_UNSUPPORTED = 900
UPDATE_FAILURE = 910


@dataclass(frozen=True, slots=True)
class _Meaning:
    meaning: str
    remedy: str
    raises: type[CaptureError] | None = None


_RESTART = (
    "The context is lost and every further call fails: restart the process, and run it once "
    "under compute-sanitizer to find the access."
)

_MEANINGS: dict[int, _Meaning] = {
    1: _Meaning(
        "an argument is not acceptable for this object in its present state",
        "Look at the call and its subject: a graph with conditional or allocation nodes can be "
        "instantiated once only, and neither cloned nor made a child.",
    ),
    OUT_OF_MEMORY: _Meaning(
        "the device has no memory left for this",
        "Free device memory, release graphs that are not needed, or let graphs share a pool.",
    ),
    3: _Meaning("the driver is not initialised", "Let the driver be chosen by select() first."),
    4: _Meaning(
        "the driver is shutting down",
        "Close graphs before the interpreter exits: close_all() does.",
    ),
    100: _Meaning("no GPU is visible", "Check CUDA_VISIBLE_DEVICES and nvidia-smi."),
    101: _Meaning("there is no such GPU", "Use an ordinal that nvidia-smi lists."),
    INVALID_CONTEXT: _Meaning(
        "no context of that device is current in this thread",
        "Launch on a stream of the graph's device, or make the device current.",
    ),
    209: _Meaning(
        "the image has no code for this GPU", "Build it for this GPU, or load PTX instead."
    ),
    218: _Meaning("the PTX cannot be compiled", "Check it with ptxas."),
    222: _Meaning(
        "the PTX is newer than the installed driver understands",
        "Lower its .version, or update the driver.",
    ),
    302: _Meaning(
        "the image refers to a symbol that the driver does not have",
        "Link the image against the device runtime it uses.",
    ),
    400: _Meaning(
        "a handle is not (or no longer) valid",
        "Keep streams, events, modules and graphs alive as long as they are used.",
    ),
    500: _Meaning("the image has no function of that name", "Check the (mangled) name."),
    NOT_READY: _Meaning("the work is not finished", "Wait for it."),
    700: _Meaning("a kernel read or wrote memory that is not there", _RESTART),
    701: _Meaning(
        "the launch asks for more registers or shared memory than a block can have",
        "Launch with smaller blocks or less shared memory.",
    ),
    710: _Meaning("a device-side assertion failed", _RESTART),
    715: _Meaning("a kernel executed an illegal instruction", _RESTART),
    716: _Meaning("a kernel accessed memory at a misaligned address", _RESTART),
    719: _Meaning("a kernel failed while it ran", _RESTART),
    801: _Meaning(
        "the driver does not support this here, or not of such a graph",
        "A graph with conditional or allocation nodes can be instantiated once only, and neither "
        "cloned nor made a child. Else update the driver, or do without.",
    ),
    900: _Meaning(
        "the call is not permitted while a stream captures, and breaks the capture it concerns",
        "Do not synchronise, query, read back or allocate outside the pool inside a capture. If "
        'another thread made the call, capture with capture_error_mode="thread_local".',
        CaptureInvalidated,
    ),
    901: _Meaning(
        "an earlier illegal call broke the capture",
        "Find the first call that failed inside the capture: it names the reason. If it was "
        'another thread\'s, capture with capture_error_mode="thread_local".',
        CaptureInvalidated,
    ),
    902: _Meaning(
        "the call would merge two captures that are apart",
        "Let a stream wait only for events of its own capture: a side stream cannot serve a graph "
        "and the body of a conditional, or two graphs, at once.",
        CaptureInvalidated,
    ),
    903: _Meaning(
        "the capture did not begin on this stream",
        "End a capture on the stream it began on.",
        CaptureError,
    ),
    904: _Meaning(
        "work forked to another stream was not joined back",
        "Before the capture (or the body) ends, record an event on each forked stream and let the "
        "capture stream wait for it.",
        UnjoinedWork,
    ),
    905: _Meaning(
        "captured work would depend on work outside the capture",
        "Do not wait inside a capture for events recorded before it; synchronise ahead of it.",
        CaptureInvalidated,
    ),
    906: _Meaning(
        "the call would depend on captured work through the legacy default stream",
        "Keep off the legacy default stream (stream 0, where synchronous copies run) inside a "
        "capture, and capture on a non-blocking stream.",
        CaptureInvalidated,
    ),
    907: _Meaning(
        "the event was last recorded inside a capture, so it tells nothing of finished work",
        "Synchronise with an event recorded outside, after the replay.",
        CaptureError,
    ),
    908: _Meaning(
        "another thread began the capture",
        'End it in that thread, or begin it with capture_error_mode="relaxed".',
        CaptureError,
    ),
    UPDATE_FAILURE: _Meaning(
        "the executable cannot be changed into the new graph", "Instantiate the new graph."
    ),
}


def code_name(driver: Any, code: int) -> str:
    """The driver's name of a result, or that of the bindings for one it does not know."""
    try:
        result = driver.CUresult(code)
    except ValueError:  # Of a driver newer than the bindings.
        return "a result that the bindings do not know"
    failed, name = driver.cuGetErrorName(result)
    return name.decode() if not failed and name else str(result.name)


def _native_meaning(driver: Any, code: int) -> str:
    try:
        failed, text = driver.cuGetErrorString(driver.CUresult(code))
    except ValueError:
        return "update cuda-bindings to read it"
    return text.decode() if not failed and text else "the driver gives no reason"


def failure(driver: Any, call: str, code: int, *, about: str) -> TensorplayError:
    """The error of one failed call, ready to raise.

    Args:
        driver: The ``cuda.bindings.driver`` module.
        call: Name of the native call.
        code: Its result, not 0.
        about: The named thing it was done to.
    """
    name = code_name(driver, code)
    known = _MEANINGS.get(code)
    if known is None:
        known = _Meaning(_native_meaning(driver, code), "See the driver's documentation of it.")
    if known.raises is not None:
        return known.raises(
            doing="capturing",
            subject=about,
            met=f"{call} returned {name} ({code}): {known.meaning}",
            remedy=known.remedy,
        )
    if code == OUT_OF_MEMORY:
        return PoolExhausted(
            doing="allocating for",
            subject=about,
            met=f"{call} returned {name} ({code}): {known.meaning}",
            remedy=known.remedy,
        )
    return DriverCallFailed(
        call=call,
        code=code,
        code_name=name,
        meaning=known.meaning,
        subject=about,
        remedy=known.remedy,
    )
