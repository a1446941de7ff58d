"""Hooks of a device: what it is, its streams, its arrays, how inputs reach a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tensorplay_core.protocols import Device, Executable, StagePlan

from .markers import hookspec


@hookspec(firstresult=True)
def tensorplay_describe() -> Mapping[str, str]:
    """Facts for people: versions of what the driver stands on, devices, floors that bind here."""


@hookspec(firstresult=True)
def tensorplay_resolve_device(device: object) -> Device:
    """Turns what a user calls a device into the driver's own value.

    None is the current device. Raises ArgumentError for one that is not there.
    """


@hookspec(firstresult=True)
def tensorplay_current_stream(device: Device) -> int:
    """Handle of this thread's current stream on ``device``."""


@hookspec(firstresult=True)
def tensorplay_side_stream(device: Device, pool: object) -> object:
    """A non-blocking stream to capture on: always the same one for the same device and pool.

    The driver keeps it alive. Captures that share a pool must share a stream, or the pool cannot
    reuse memory between them.
    """


@hookspec(firstresult=True)
def tensorplay_resolve_stream(stream: object, device: Device) -> int:
    """Handle of a stream object (``__cuda_stream__``), or of an int, checked.

    Raises ArgumentTypeError for what is no stream.
    """


@hookspec(firstresult=True)
def tensorplay_using_stream(stream: object, device: Device) -> AbstractContextManager[None]:
    """Makes ``stream`` current in this thread while entered. It may be the legacy stream."""


@hookspec(firstresult=True)
def tensorplay_array_like(array: Any) -> Any:
    """A new array like ``array``, contents undefined, on the current stream.

    Inside a capture its memory comes from the capture's pool.
    """


@hookspec(firstresult=True)
def tensorplay_array_copy(destination: Any, source: Any) -> None:
    """Copies ``source`` into ``destination`` on the current stream: work, so captured if capturing.

    Shapes must be equal; dtype, strides and device follow the framework's own copy.
    """


@hookspec(firstresult=True)
def tensorplay_array_overlap(first: Any, second: Any) -> bool:
    """True if the two arrays may share memory."""


@hookspec(firstresult=True)
def tensorplay_signature_check(static: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
    """A fast check of arrays against ``static``: count, shape, strides, dtype, device.

    The callable it returns may say no to arrays that would do; core then compares slowly and lists
    the differences, and if there are none accepts. It never says yes to arrays that would not do.
    """


@hookspec(firstresult=True)
def tensorplay_stage(
    executable: Executable, static_inputs: Sequence[Any], results: Sequence[Any]
) -> StagePlan:
    """Prepares staged launches of ``executable``.

    A call of the plan copies its inputs into ``static_inputs``, launches, and returns copies of
    ``results`` in memory of their own, all ordered on the launching stream.
    """
