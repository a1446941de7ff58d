"""Streams and events of the driver's own, and what else counts as a stream."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from tensorplay_core import reclaim
from tensorplay_core.errors import ArgumentError, ArgumentTypeError, GraphStateError

if TYPE_CHECKING:
    from .contexts import Contexts, CudaDevice

__all__ = ["LEGACY", "SPECIAL", "Current", "Event", "Stream", "handle_of"]

LEGACY = (0, 1)
"""Handles of the legacy default stream, which cannot capture."""

SPECIAL = (0, 1, 2)
"""Handles that mean another stream in each context: these, and the per-thread default stream."""


class Current(threading.local):
    """The current streams of each thread by device ordinal, the legacy one where none is set."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}


class Stream:
    """A non-blocking stream. It is destroyed with its last reference, or by ``close``.

    Attributes:
        device: The GPU it is on.
    """

    def __init__(self, contexts: Contexts, device: CudaDevice) -> None:
        flags = contexts.native.CUstream_flags.CU_STREAM_NON_BLOCKING
        with contexts.relaxed(), contexts.activated(device):
            native = contexts.cu.cuStreamCreate(flags, about=f"a stream of {device}")
        self.device = device
        self._handle = int(native)
        self._end = weakref.finalize(self, _destroy, contexts, device, "cuStreamDestroy", native)
        # At interpreter exit the driver goes with the process; destroying in any order does not.
        self._end.atexit = False

    @property
    def handle(self) -> int:
        """The native handle.

        Raises:
            GraphStateError: It was closed.
        """
        if not self._end.alive:
            raise GraphStateError(
                doing="using",
                subject=repr(self),
                met="it is closed",
                remedy="Make a new stream, and close streams after their last use.",
            )
        return self._handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """``(protocol version, handle)``."""
        return 0, self.handle

    def __repr__(self) -> str:
        return f"<stream {self._handle:#x} on {self.device}>"

    def abandon(self) -> None:
        """Never destroys the native stream: destroying this one would end the process."""
        self._end.detach()

    def close(self) -> None:
        """Destroys it once its work is done. Idempotent."""
        self._end()


class Event:
    """A point in the work of a stream, without timing."""

    def __init__(self, contexts: Contexts, device: CudaDevice) -> None:
        flags = contexts.native.CUevent_flags.CU_EVENT_DISABLE_TIMING
        with contexts.relaxed(), contexts.activated(device):
            self.native = contexts.cu.cuEventCreate(flags, about=f"an event of {device}")
        self.device = device
        self._end = weakref.finalize(
            self, _destroy, contexts, device, "cuEventDestroy", self.native
        )
        self._end.atexit = False

    def __repr__(self) -> str:
        return f"<event {int(self.native):#x} on {self.device}>"

    def close(self) -> None:
        """Destroys it. Idempotent."""
        self._end()


def _destroy(contexts: Contexts, device: CudaDevice, call: str, native: Any) -> None:
    def destroy() -> None:
        with contexts.relaxed(), contexts.activated(device):
            getattr(contexts.cu, call)(native, about=f"a handle of {device}")

    reclaim.dispose(destroy)


def handle_of(stream: object) -> int:
    """The handle of what counts as a stream.

    An int, anything with ``__cuda_stream__``, torch's (``.cuda_stream``), CuPy's (``.ptr``).

    Raises:
        ArgumentTypeError: It is no stream.
        ArgumentError: Its handle or protocol version is not acceptable.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return _checked(int(stream), stream)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, handle = protocol() if callable(protocol) else protocol
        if version != 0:
            raise ArgumentError(
                doing="reading",
                subject=f"stream {stream!r}",
                met=f"it speaks version {version} of __cuda_stream__, version 0 is known",
                remedy="Pass its integer handle.",
            )
        return _checked(int(handle), stream)
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        # Memory has a `ptr` too; what can be waited for is a stream.
        if isinstance(handle, int) and callable(getattr(stream, "synchronize", None)):
            return _checked(handle, stream)
    raise ArgumentTypeError(
        doing="reading",
        subject=f"stream {stream!r}",
        met=f"it is a {type(stream).__name__}",
        remedy="Pass a torch or CuPy stream, anything with __cuda_stream__, or an int handle.",
    )


def _checked(handle: int, stream: object) -> int:
    if handle < 0:
        raise ArgumentError(
            doing="reading",
            subject=f"stream {stream!r}",
            met=f"its handle is {handle}",
            remedy="Pass a handle that the driver gave out: never negative.",
        )
    return handle
