"""CuPy's current streams, and what else can be made one of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
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

    # For launches without a frame of Python's: at best no object either, else CuPy's own of the
    # stream, whose handle they know from the launch before.
    address = _address("get_stream_ptr", "intptr_t (int)")
    current.function = (address, device) if address else partial(get, device)  # type: ignore[attr-defined]
    return current


def _address(name: str, signature: str) -> int | None:
    """Where a C function is that CuPy's module of streams offers to Cython; None if it does not."""
    try:
        offered = import_module("cupy_backends.cuda.stream").__pyx_capi__[name]
        get = ctypes.pythonapi.PyCapsule_GetPointer
    except (ImportError, AttributeError, KeyError):
        return None
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        # A capsule is opened by its name, which is the signature of what is in it.
        return int(get(offered, signature.encode()))
    except ValueError:
        return None


@contextmanager
def using(stream: Any, device: int) -> Iterator[None]:
    """A device and a CuPy stream on it current in this thread while entered."""
    # CuPy lets a stream be entered on its own device only.
    with cupy.cuda.Device(device), stream:
        yield
