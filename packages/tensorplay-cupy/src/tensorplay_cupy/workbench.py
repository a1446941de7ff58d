"""The neutral work through which the conformance suite tests the CuPy driver: ufuncs and copies."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

import cupy
import numpy

from tensorplay_core import reclaim
from tensorplay_core.discovery import find_workbench
from tensorplay_core.errors import ArgumentError, OperationRefused
from tensorplay_core.protocols import Device
from tensorplay_core.runtime import Runtime

from . import captures, streams
from .refusals import refusing

if TYPE_CHECKING:
    from .driver.conditional import Conditionals

__all__ = ["CupyWorkbench"]


class CupyWorkbench:
    """CuPy arrays, and work on them as a user writes it."""

    def __init__(self, runtime: Runtime, device: Device) -> None:
        self.runtime, self.device = runtime, device
        self._ordinal = int(cast("int", device))
        self._driver = cast("Conditionals", runtime.driver)
        self._beneath = find_workbench("cuda")(self._driver.base.runtime, device)
        self._warm_up()

    def _warm_up(self) -> None:
        """Compiles and loads every kernel: the first use of one may be inside a capture."""
        one, two, flag = self.buffer([1.0, 2.0]), self.buffer([1.0]), self.flag(False)
        for buffer in (one, two):
            self.copy_(buffer, self.double(buffer))
            self.add_(buffer, buffer)
            self.add_(buffer, 1.0)
            self.less_(flag, buffer, buffer)
            self.less_(flag, buffer, 1.0)
        for array in (flag, self.index(0)):
            self.runtime.array_copy(self.runtime.array_like(array), array)
        self.synchronize()

    def _made(self, values: Sequence[Any], dtype: str) -> Any:
        with refusing(), cupy.cuda.Device(self._ordinal):
            return cupy.array(values, dtype=dtype)

    def buffer(self, values: Sequence[float]) -> Any:
        """A float32 array from CuPy's own pool."""
        return self._made(values, "f")

    def flag(self, value: bool) -> Any:
        """One Bool."""
        return self._made([value], "?")

    def index(self, value: int) -> Any:
        """One int32."""
        return self._made([value], "i")

    def read(self, buffer: Any) -> list[float]:
        """Waits for the device and returns the values."""
        self._refuse("reading an array back to the host")
        self.synchronize()
        with refusing():
            return [float(value) for value in buffer.get()]

    def write(self, buffer: Any, values: Sequence[float]) -> None:
        """Waits for the device, then sets the values from the host."""
        self._refuse("writing an array from the host")
        self.synchronize()
        with refusing():
            buffer.set(numpy.array(values, dtype=buffer.dtype))
        self.synchronize()

    def copy_(self, destination: Any, source: Any) -> None:
        """``destination[:] = source``."""
        with refusing():
            self.runtime.array_copy(destination, source)

    def add_(self, destination: Any, source: Any) -> None:
        """``destination += source``."""
        if isinstance(source, cupy.ndarray) and source.shape != destination.shape:
            raise ArgumentError(
                doing="adding to",
                subject=f"a buffer of {destination.size}",
                met=f"the other buffer has {source.size} elements",
                remedy="Add buffers of one length: nothing broadcasts.",
            )
        other = source if isinstance(source, cupy.ndarray) else numpy.float32(source)
        with refusing():
            cupy.add(destination, other, out=destination)

    def double(self, source: Any) -> Any:
        """``source * 2`` in a fresh array."""
        with refusing():
            return cupy.multiply(source, numpy.float32(2))

    def less_(self, out: Any, first: Any, second: Any) -> None:
        """``out[0] = first[0] < second[0]``."""
        other = second[:1] if isinstance(second, cupy.ndarray) else numpy.float32(second)
        with refusing():
            cupy.less(first[:1], other, out=out)

    def stream(self) -> Any:
        """A new non-blocking stream."""
        with self._driver.base.driver.relaxed(), cupy.cuda.Device(self._ordinal):
            return cupy.cuda.Stream(non_blocking=True)

    def on(self, stream: Any) -> AbstractContextManager[None]:
        """Makes ``stream`` current in this thread while entered."""
        return self.runtime.using_stream(stream, self.device)

    def fork(self) -> Any:
        """A new stream whose work comes after all work so far on the current one."""
        side = self.stream()
        # A stream that dies while it captures would be destroyed.
        self._driver.keep(side)
        self._order(cupy.cuda.get_current_stream(), side)
        return side

    def join(self, stream: Any) -> None:
        """The current stream's next work comes after all work so far on ``stream``."""
        self._order(stream, cupy.cuda.get_current_stream())

    def _order(self, first: Any, then: Any) -> None:
        with refusing(), self._driver.base.driver.relaxed():
            event = cupy.cuda.Event(disable_timing=True)
            event.record(first)
            then.wait_event(event)
            self._driver.keep(event)

    def fail(self) -> None:
        """Waits for the current stream, which breaks a capture of it."""
        if isinstance(captures.innermost(), captures.CupyBody):
            # A body that is really broken costs its whole graph, and in some drivers the process.
            self._refuse("waiting for the stream of a conditional body")
        with refusing():
            cupy.cuda.get_current_stream().synchronize()

    def synchronize(self) -> None:
        """Waits for all work on the device."""
        self._refuse("waiting for the device")
        with refusing(), cupy.cuda.Device(self._ordinal) as device:
            device.synchronize()

    def _refuse(self, operation: str) -> None:
        if streams.capturing():
            raise OperationRefused(
                operation=operation,
                met="the current stream is capturing, so nothing has run that could be waited for",
                remedy="Do it before the capture or after the replay.",
            )

    def live_bytes(self) -> int:
        """Device bytes held by arrays and by pools of graphs, after a collection."""
        gc.collect()
        reclaim.drain()
        with cupy.cuda.Device(self._ordinal):
            eager = int(cupy.get_default_memory_pool().used_bytes())
        return eager + int(self._beneath.live_bytes())

    def surroundings(self) -> tuple[object, ...]:
        """Current stream, device and allocator, and what the driver beneath calls current."""
        return (
            streams.current_stream(self._ordinal),
            cupy.cuda.runtime.getDevice(),
            cupy.cuda.get_allocator(),
            self._beneath.surroundings(),
        )
