"""The host as a device: its streams, its arrays, and how inputs reach a graph."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.signature import a_type

from .arrays import Arrays
from .buffers import Buffer, memory_of, overlap
from .executable import Executable
from .memory import Pool
from .staging import Stage, form_check
from .streams import Stream

__all__ = ["HOST", "Device"]

HOST = "host"


class Device(Arrays):
    """One device, ``"host"``, and its work."""

    def __init__(self) -> None:
        super().__init__()
        self._side: Stream | None = None

    @hookimpl
    def tensorplay_describe(self) -> Mapping[str, str]:
        """Python's version, the one device, the cap on loops."""
        return {
            "device": HOST,
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "loop_limit": str(self.loop_limit),
        }

    @hookimpl
    def tensorplay_resolve_device(self, device: object) -> str:
        """``"host"`` for None, ``"host"`` and ``"cpu"``."""
        if device is None or device in (HOST, "cpu"):
            return HOST
        raise ArgumentError(
            doing="choosing",
            subject=f"device {device!r}",
            met="the host driver has one device",
            remedy="Pass None, 'host' or 'cpu'.",
        )

    @hookimpl
    def tensorplay_current_stream(self, device: str) -> int:
        """Handle of this thread's current stream."""
        return self.current.handle

    @hookimpl
    def tensorplay_side_stream(self, device: str, pool: object) -> Stream:
        """The pool's stream; without a pool, one of the driver."""
        if isinstance(pool, Pool):
            if pool.stream is None:
                pool.stream = self.stream(f"pool {pool.id.serial}")
            return pool.stream
        if self._side is None:
            self._side = self.stream("side stream")
        return self._side

    @hookimpl
    def tensorplay_resolve_stream(self, stream: object, device: str) -> int:
        """Handle of a stream of this driver."""
        return self._resolved(stream).handle

    @hookimpl
    @contextmanager
    def tensorplay_using_stream(self, stream: object, device: str) -> Iterator[None]:
        """Makes the stream current in this thread while entered."""
        with self.using(self._resolved(stream)):
            yield

    def _resolved(self, stream: object) -> Stream:
        """The stream that an object or a handle means."""
        handle = stream
        if not isinstance(stream, int) and callable(
            protocol := getattr(stream, "__cuda_stream__", None)
        ):
            handle = protocol()[1]
        if not isinstance(handle, int) or isinstance(handle, bool):
            raise ArgumentTypeError(
                doing="choosing a stream",
                subject=repr(stream),
                met=f"{a_type(stream)} is no stream",
                remedy="Pass a stream of the host driver (driver.stream()), or its handle.",
            )
        found = self._capturing.streams.get(handle)
        if found is None:
            raise ArgumentError(
                doing="choosing a stream",
                subject=repr(stream),
                met=f"the host driver has no live stream with handle {handle}",
                remedy="Pass a stream that this driver made, and keep the stream alive.",
            )
        return found

    @hookimpl
    def tensorplay_array_like(self, array: Any) -> Buffer:
        """A new buffer of the array's type and shape."""
        memory = memory_of(array)
        return self._allocate(memory.format, tuple(memory.shape or ()))

    @hookimpl
    def tensorplay_array_copy(self, destination: Any, source: Any) -> None:
        """Copies one array into another of equal shape."""
        self.copy(destination, source)

    @hookimpl
    def tensorplay_array_overlap(self, first: Any, second: Any) -> bool:
        """True if the two arrays may share memory."""
        return overlap(memory_of(first), memory_of(second))

    @hookimpl
    def tensorplay_signature_check(self, static: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
        """Compares count, types and shapes; every array here is contiguous and on the host."""
        return form_check([memory_of(array) for array in static])

    @hookimpl
    def tensorplay_stage(
        self, executable: Executable, static_inputs: Sequence[Any], results: Sequence[Any]
    ) -> Stage:
        """Prepares staged launches of ``executable``."""
        return Stage(self, self._resolved, executable, static_inputs, results)
