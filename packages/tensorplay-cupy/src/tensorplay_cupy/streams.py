"""CuPy's current streams, and what else can be made one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import cupy

__all__ = ["as_cupy_stream", "capturing", "current_of", "current_stream", "using"]

LEGACY, PER_THREAD = 1, 2
"""Handles of the default streams beside 0, which is the legacy one as well."""


class _Handle:
    """A stream that gives its handle in another way than CuPy asks for it."""

    def __init__(self, handle: int, stream: object) -> None:
        self._handle, self._stream = handle, stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def as_cupy_stream(stream: object, handle: int) -> Any:
    """A CuPy stream for ``stream``, whose handle is ``handle``; it keeps ``stream`` alive."""
    if isinstance(stream, cupy.cuda.Stream):
        return stream
    if handle in (0, LEGACY):
        return cupy.cuda.Stream.null
    if handle == PER_THREAD:
        return cupy.cuda.Stream.ptds
    external = stream if hasattr(stream, "__cuda_stream__") else _Handle(handle, stream)
    return cupy.cuda.Stream.from_external(external)


def current_stream(device: int) -> int:
    """Handle of CuPy's current stream of this thread on a device."""
    return int(cupy.cuda.get_current_stream(device).ptr)


def capturing() -> bool:
    """True if CuPy's current stream of this thread captures, or a broken capture is on it."""
    stream = cupy.cuda.get_current_stream()
    # Asked about the legacy stream, CUDA fails where a blocking stream captures.
    if stream.ptr in (0, LEGACY):
        return False
    try:
        return bool(stream.is_capturing())
    except RuntimeError:
        return True


def current_of(device: int) -> Callable[[], int]:
    """A function that returns ``current_stream(device)``, for the hot path."""
    get: Callable[[int], Any] = cupy.cuda.get_current_stream

    def current() -> int:
        return get(device).ptr  # type: ignore[no-any-return]

    # For launches without a frame of Python's, which know the handle of a stream that they had.
    current.stream = partial(get, device)  # type: ignore[attr-defined]
    return current


@contextmanager
def using(stream: Any, device: int) -> Iterator[None]:
    """A device and a CuPy stream on it current in this thread while entered."""
    # CuPy lets a stream be entered on its own device only.
    with cupy.cuda.Device(device), stream:
        yield
