"""The neutral work of the host driver, for the suite that tests every driver."""

from __future__ import annotations

import gc
import random
import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from tensorplay_core.errors import ArgumentError
from tensorplay_core.protocols import Device
from tensorplay_core.runtime import Runtime

from .buffers import Buffer
from .conditional import Conditionals
from .streams import Stream

__all__ = ["HostWorkbench"]


class HostWorkbench:
    """Least work on host buffers, in float32.

    Sums and products of two float32 numbers computed in Python's doubles and rounded once when
    stored are those of float32 arithmetic.
    """

    def __init__(self, runtime: Runtime, device: Device) -> None:
        self.runtime = runtime
        self.device = device
        self._driver = cast("Conditionals", runtime.driver)

    def buffer(self, values: Sequence[float]) -> Buffer:
        """A float32 buffer."""
        return self._driver.buffer(list(values), "f")

    def flag(self, value: bool) -> Buffer:
        """One Bool."""
        return self._driver.buffer([value], "?")

    def index(self, value: int) -> Buffer:
        """One int32."""
        return self._driver.buffer([value], "i")

    def read(self, buffer: Any) -> list[float]:
        """The values, as floats."""
        return [float(value) for value in buffer.tolist()]

    def write(self, buffer: Buffer, values: Sequence[float]) -> None:
        """Sets the values from the host."""
        convert = {"?": bool, "i": int}.get(buffer.typecode, float)
        for index, value in enumerate(values):
            buffer[index] = convert(value)

    def copy_(self, destination: Buffer, source: Buffer) -> None:
        """``destination[:] = source``."""
        self._driver.copy(destination, source)

    def add_(self, destination: Buffer, source: Buffer | float) -> None:
        """``destination += source``."""
        if isinstance(source, Buffer):
            if len(source) != len(destination):
                raise ArgumentError(
                    doing="adding",
                    subject=f"{source!r} to {destination!r}",
                    met="their lengths differ",
                    remedy="Pass buffers of one length: nothing is broadcast.",
                )
            self._driver.launch(_add, destination, source, writes=(destination,))
        else:
            self._driver.launch(_add_constant, destination, _float32(source), writes=(destination,))

    def double(self, source: Buffer) -> Buffer:
        """``source * 2`` in a fresh buffer."""
        result = self._driver.buffer(len(source), "f")
        self._driver.launch(_double, result, source, writes=(result,))
        return result

    def less_(self, out: Buffer, first: Buffer, second: Buffer | float) -> None:
        """``out[0] = first[0] < second[0]``."""
        if isinstance(second, Buffer):
            self._driver.launch(_less, out, first, second, writes=(out,))
        else:
            self._driver.launch(_less_constant, out, first, _float32(second), writes=(out,))

    def stream(self) -> Stream:
        """A new non-blocking stream."""
        return self._driver.stream()

    def on(self, stream: Stream) -> AbstractContextManager[Stream]:
        """Makes ``stream`` current in this thread while entered."""
        return self._driver.using(stream)

    def fork(self) -> Stream:
        """A new stream after all work so far on the current one."""
        side = self._driver.stream("fork")
        side.wait_stream(self._driver.current)
        return side

    def join(self, stream: Stream) -> None:
        """Orders the current stream after ``stream``."""
        self._driver.current.wait_stream(stream)

    def fail(self) -> None:
        """Waits for the current stream."""
        self._driver.current.synchronize()

    def synchronize(self) -> None:
        """Waits for everything."""
        self._driver.synchronize()

    def live_bytes(self) -> int:
        """Bytes that buffers and pools hold, after a collection."""
        gc.collect()
        return self._driver.held_bytes

    def surroundings(self) -> tuple[object, ...]:
        """Current stream, device, state of Python's random numbers."""
        return (self._driver.current.handle, self.device, random.getstate())


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _add(destination: Buffer, source: Buffer) -> None:
    into: Any = destination.memory
    values = source.memory
    for index in range(len(into)):
        into[index] += values[index]


def _add_constant(destination: Buffer, value: float) -> None:
    into: Any = destination.memory
    for index in range(len(into)):
        into[index] += value


def _double(result: Buffer, source: Buffer) -> None:
    into: Any = result.memory
    values = source.memory
    for index in range(len(into)):
        into[index] = 2 * values[index]


def _less(out: Buffer, first: Buffer, second: Buffer) -> None:
    out.memory[0] = first.memory[0] < second.memory[0]


def _less_constant(out: Buffer, first: Buffer, second: float) -> None:
    out.memory[0] = first.memory[0] < second
