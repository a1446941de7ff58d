"""Which device is meant, and which stream: what users say, as ``torch.device`` and handles."""

from __future__ import annotations

from functools import cache

import torch

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.signature import a_type
from tensorplay_torch._private import PRIVATE

__all__ = ["current_index", "index_of", "is_current", "resolve_device", "stream_handle", "wait_for"]

CPU = torch.device("cpu")
MOST = 127
"""Largest ordinal that a ``torch.device`` can hold."""


def resolve_device(device: object) -> torch.device:
    """The device meant by None, an ordinal, a name or a ``torch.device``, with its index.

    None is the current CUDA device where there is one, else the CPU.

    Raises:
        ArgumentError: It is not there, or it is neither a CUDA device nor the CPU.
        ArgumentTypeError: It is no device.
    """
    if device is None:
        # Whether it is initialised is a look at a variable; whether it could be, a few calls.
        if torch.cuda.is_initialized():
            return _cuda(current_index())
        return _current() if torch.cuda.is_available() else CPU
    if isinstance(device, bool) or not isinstance(device, int | str | torch.device):
        raise ArgumentTypeError(
            doing="choosing",
            subject=f"device {device!r}",
            met=f"it is {a_type(device)}",
            remedy="Pass None, an ordinal, 'cpu', 'cuda', 'cuda:1' or a torch.device.",
        )
    _refuse_wrapped(device)
    try:
        meant = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:
        raise _refused(device, str(error).splitlines()[0]) from error
    if meant.type == "cpu":
        return CPU
    if meant.type != "cuda":
        raise _refused(
            device,
            f"torch on {meant.type} has no graphs that can be driven; CUDA and the CPU path only",
        )
    if not torch.cuda.is_available():
        raise _refused(device, "torch sees no CUDA device")
    if meant.index is None:
        return _current()
    if meant.index >= torch.cuda.device_count():
        raise _refused(device, f"torch sees {torch.cuda.device_count()} CUDA devices")
    return meant


def index_of(device: torch.device) -> int:
    """Ordinal of a resolved CUDA device."""
    assert device.index is not None, "resolve_device gives every CUDA device its index"
    return device.index


def current_index() -> int:
    """Ordinal of this thread's current CUDA device, once torch has initialised CUDA."""
    found: int = (PRIVATE["get_device"].value or torch.cuda.current_device)()
    return found


def is_current(device: torch.device) -> bool:
    """True if a CUDA device is this thread's current one, once torch has initialised CUDA."""
    return current_index() == device.index


def wait_for(device: torch.device) -> None:
    """Waits for a CUDA device. torch's way makes it current first, and that takes longer."""
    fast = PRIVATE["synchronize"].value
    if fast is not None and is_current(device):
        fast()
    else:
        torch.cuda.synchronize(device)


def stream_handle(stream: object, device: torch.device) -> int | None:
    """Handle of a torch stream on ``device``; None if it is no torch stream.

    Raises:
        ArgumentError: It is a stream of another device.
    """
    if not isinstance(stream, torch.Stream):
        return None
    if stream.device != device:
        raise ArgumentError(
            doing="using",
            subject=repr(stream),
            met=f"it is a stream of {stream.device}, the work is on {device}",
            remedy=f"Pass a stream made with torch.cuda.Stream({str(device)!r}), or None.",
        )
    # torch.Stream, unlike torch.cuda.Stream, calls it by a name of its own.
    handle: int | None = getattr(stream, "cuda_stream", None) or getattr(
        stream, "native_handle", None
    )
    return handle or 0


def _refuse_wrapped(device: int | str | torch.device) -> None:
    """Refuses an ordinal that torch, which keeps it in eight bits, would take for another."""
    digits = str(device).rpartition(":")[2]
    if digits.isdecimal() and int(digits) > MOST:
        raise _refused(device, f"torch counts devices up to {MOST}")


def _current() -> torch.device:
    return _cuda(torch.cuda.current_device())


@cache
def _cuda(index: int) -> torch.device:
    return torch.device("cuda", index)


def _refused(device: object, met: str) -> ArgumentError:
    return ArgumentError(
        doing="choosing",
        subject=f"device {device!r}",
        met=met,
        remedy="Pass device='cpu', or 'cuda:N' for a device that torch.cuda.device_count() counts.",
    )
