"""Handles of cuBLAS, cuSPARSE and cuSOLVER for linear algebra that can be captured.

CuPy's own handles refuse captures. These are nvmath-python's bindings on handles of our own: one a
thread for eager work, and for each capture a set that is its graph's as long as it can run, since
kernels read what a handle keeps on the device. Handles of graphs that are gone serve new ones.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import cupy

from tensorplay_core import select
from tensorplay_core.errors import DriverCallFailed, DriverUnavailable, OperationRefused
from tensorplay_core.protocols import Device
from tensorplay_cupy import captures, streams
from tensorplay_cupy.refusals import caller

__all__ = ["Handles", "library", "prepare", "using"]

NAMES = ("cublas", "cusparse", "cusolverDn")
_lock = threading.Lock()
_used: set[str] = set()
_idle: dict[int, list[Handles]] = {}
_here = threading.local()
_graphs: weakref.WeakKeyDictionary[captures.CupyCapture, Handles] = weakref.WeakKeyDictionary()


def library(name: str) -> Any:
    """The bindings of one library.

    Raises:
        DriverUnavailable: nvmath-python, or the library itself, is not installed.
    """
    try:
        return import_module(f"nvmath.bindings.{name}")
    except (ImportError, RuntimeError) as error:
        raise DriverUnavailable(
            doing="loading",
            subject=f"{name} through nvmath-python",
            met=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            remedy="pip install 'tensorplay-cupy[linalg]'; the library comes with the CUDA toolkit "
            "or with wheels such as nvidia-cublas.",
        ) from error


class Handles:
    """One handle of each library, made when first asked for.

    Args:
        device: Ordinal of the GPU they are for.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._made: dict[str, int] = {}

    def get(self, name: str) -> int:
        """The handle of a library."""
        if name not in self._made:
            bindings = library(name)
            with cupy.cuda.Device(self.device):
                self._made[name] = int(_checked(name, "create", bindings.create))
            _used.add(name)
        return self._made[name]


class _Lease:
    """Handles of a thread or a graph. They are free for others once it is gone."""

    def __init__(self, handles: Handles) -> None:
        self.handles = handles
        weakref.finalize(self, _idle.setdefault(handles.device, []).append, handles).atexit = False


def prepare(device: Device) -> None:
    """Has handles ready of the libraries used so far: a capture may be unable to make them."""
    if not _used:
        return
    ordinal = int(cast("int", device))
    handles = _take(ordinal)
    for name in tuple(_used):
        handles.get(name)
    _idle.setdefault(ordinal, []).append(handles)


def _take(device: int) -> Handles:
    with _lock:
        idle = _idle.setdefault(device, [])
        return idle.pop() if idle else Handles(device)


def _handles() -> Handles:
    device = int(cupy.cuda.runtime.getDevice())
    capture = captures.outermost()
    if not streams.capturing():
        leases: dict[int, _Lease] = _here.__dict__.setdefault("leases", {})
        if device not in leases:
            leases[device] = _Lease(_take(device))
        return leases[device].handles
    if capture is None or capture.adopted:
        raise OperationRefused(
            operation="linear algebra",
            where=caller(),
            met="another library began the capture, so no graph of ours can own a library handle",
            remedy="Begin the capture with tensorplay_cupy.graph().",
        )
    handles = _graphs.get(capture)
    if handles is None:
        handles = _graphs[capture] = _take(device)
        driver = cast("Any", select("cupy").driver)
        driver.keep(_Lease(handles))
    return handles


@contextmanager
def using(name: str) -> Iterator[tuple[Any, int]]:
    """Bindings and handle of a library, set to CuPy's current stream.

    Raises:
        DriverUnavailable: It is not installed.
        DriverCallFailed: A call of it failed.
        OperationRefused: Another library began the capture.
    """
    bindings = library(name)
    handles = _handles()
    driver = cast("Any", select("cupy").driver).base.driver
    # What a library allocates for itself at a first use belongs to no stream.
    with driver.relaxed():
        handle = handles.get(name)
        stream = int(cupy.cuda.get_current_stream().ptr)
        _checked(name, "set_stream", bindings.set_stream, handle, stream)
        try:
            yield bindings, handle
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "nvmath":
                raise
            raise _failure(name, "a routine", error) from error


def _checked(name: str, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise _failure(name, call, error) from error


def _failure(name: str, call: str, error: Exception) -> DriverCallFailed:
    status = getattr(error, "status", -1)
    return DriverCallFailed(
        call=f"{name}.{call}",
        code=int(status),
        code_name=str(error).partition(" ")[0] or type(error).__name__,
        meaning=str(error) or type(error).__name__,
        subject=f"{name} on the current stream",
        remedy="Inside a capture: run the operation once before it, so that the library is set "
        "up. Otherwise look at the shapes and dtypes, and at the memory that is left.",
    )
