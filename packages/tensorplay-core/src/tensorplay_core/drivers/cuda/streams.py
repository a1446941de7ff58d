"""Streams and events of the driver's own, and what else counts as a stream."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from tensorplay_core import reclaim
from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    GraphStateError,
    OperationRefused,
)
from tensorplay_core.signature import a_type

from .failures import NOT_READY, failure

if TYPE_CHECKING:
    from .contexts import Contexts, CudaDevice
    from .work import Work

__all__ = ["LEGACY", "SPECIAL", "Current", "Event", "Stream", "handle_of"]

LEGACY = (0, 1)
"""Handles of the legacy default stream, which cannot capture."""

SPECIAL = (0, 1, 2)
"""Handles that mean another stream in each context: these, and the per-thread default stream."""


class Current(threading.local):
    """The current streams of each thread by device ordinal, the legacy one where none is set."""

    streams: dict[int, int]

    def __getattr__(self, name: str) -> dict[int, int]:
        # Not in `__init__`, inside which a finaliser would find half of it.
        if name != "streams":
            raise AttributeError(name)
        return self.__dict__.setdefault("streams", {})  # type: ignore[no-any-return]


class Stream:
    """A non-blocking stream. It is destroyed with its last reference, or by ``close``.

    Attributes:
        device: The GPU it is on.
    """

    def __init__(self, work: Work, device: CudaDevice) -> None:
        flags = work.native.CUstream_flags.CU_STREAM_NON_BLOCKING
        with work.inside(device):
            native = work.cu.cuStreamCreate(flags, about=f"a stream of {device}")
        self.device = device
        self._work = work
        self._handle = int(native)
        self._end = weakref.finalize(self, _destroy, work, device, "cuStreamDestroy", native)
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

    @property
    def capturing(self) -> bool:
        """True if its work is being recorded."""
        return self._work.is_capturing(self.handle)

    def wait_event(self, event: Event) -> None:
        """Orders work issued here from now on after ``event``.

        If the event was recorded in a capture, this stream is forked into it.
        """
        event.wait(self)

    def wait_stream(self, other: object) -> None:
        """Orders work issued here from now on after all work so far on ``other``."""
        event = Event(self._work, self.device)
        event.record(other)
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Records ``event`` (a new one when None) here and returns it."""
        recorded = event or Event(self._work, self.device)
        recorded.record(self)
        return recorded

    def synchronize(self) -> None:
        """Waits for its work.

        Raises:
            OperationRefused: It is capturing.
        """
        if self.capturing:
            raise OperationRefused(
                operation=f"waiting for {self!r}",
                met="it is capturing, so nothing has run that could be waited for",
                remedy="Wait before the capture or after the replay.",
            )
        with self._work.inside(self.device):
            self._work.cu.cuStreamSynchronize(self.handle, about=repr(self))

    def abandon(self) -> None:
        """Never destroys the native stream: destroying this one would end the process."""
        self._end.detach()

    def close(self) -> None:
        """Destroys it once its work is done. Idempotent."""
        self._end()


class Event:
    """A point in the work of a stream, without timing."""

    def __init__(self, work: Work, device: CudaDevice) -> None:
        flags = work.native.CUevent_flags.CU_EVENT_DISABLE_TIMING
        with work.inside(device):
            self.native = work.cu.cuEventCreate(flags, about=f"an event of {device}")
        self.device = device
        self._work = work
        self._end = weakref.finalize(self, _destroy, work, device, "cuEventDestroy", self.native)
        self._end.atexit = False

    def __repr__(self) -> str:
        return f"<event {int(self.native):#x} on {self.device}>"

    def record(self, stream: object = None) -> None:
        """Stands from now on for all work so far on ``stream`` (None: the current one)."""
        work, handle = self._work, self._work.handle(stream, self.device)
        with work.activated(self.device):
            work.cu.cuEventRecord(self.native, handle, about=f"stream {handle:#x}")

    def wait(self, stream: object = None) -> None:
        """Work on ``stream`` (None: the current one) from now on comes after it."""
        work, handle = self._work, self._work.handle(stream, self.device)
        with work.activated(self.device):
            work.cu.cuStreamWaitEvent(handle, self.native, 0, about=f"stream {handle:#x}")

    def query(self) -> bool:
        """True if what it stands for is done.

        Raises:
            CaptureError: It was recorded in a capture.
        """
        work = self._work
        with work.inside(self.device):
            code = work.cu.raw("cuEventQuery")(self.native)[0]
        if code and code != NOT_READY:
            raise failure(work.native, "cuEventQuery", int(code), about=repr(self))
        return not code

    def synchronize(self) -> None:
        """Waits for what it stands for.

        Raises:
            CaptureError: It was recorded in a capture.
        """
        work = self._work
        with work.inside(self.device):
            work.cu.cuEventSynchronize(self.native, about=repr(self))

    def close(self) -> None:
        """Destroys it. Idempotent."""
        self._end()


def _destroy(contexts: Contexts, device: CudaDevice, call: str, native: Any) -> None:
    def destroy() -> None:
        with contexts.inside(device):
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
        met=f"it is {a_type(stream)}",
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
