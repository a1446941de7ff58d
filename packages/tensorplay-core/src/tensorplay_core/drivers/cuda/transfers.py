"""Copies and values: between arrays, from the host, to the host."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from typing import Any

from tensorplay_core.errors import ArgumentError, SignatureMismatch

from .arrays import FORMATS, DeviceArray, View, view
from .work import Work

__all__ = ["Transfers"]


class Transfers(Work):
    """The driver's own work, with what moves values."""

    def buffer(
        self, values: Iterable[Any], typestr: str = "<f4", device: object = None
    ) -> DeviceArray:
        """A new array of one dimension, filled from the host at once. Not inside a capture."""
        given = list(values)
        where = self.find_device(device)
        self._refuse("filling a buffer from the host", where)
        made = self.empty(len(given), typestr, where)
        self._send(made, given)
        return made

    def copy(self, destination: Any, source: Any) -> None:
        """Copies between dense arrays of one shape and element type, on the current stream.

        Raises:
            SignatureMismatch: Shape, element type or layout differ, which takes a kernel.
        """
        target, origin = view(destination), view(source)
        differences = _uncopyable(target, origin)
        if differences:
            raise SignatureMismatch(
                doing="copying",
                subject="an array",
                differences=differences,
                remedy="Copy between row-major arrays of one shape and type, or use the framework "
                "whose arrays they are: its driver converts.",
            )
        device = self.device_of(target)
        handle = self.handle(None, device)
        if target.nbytes:
            with self.activated(device):
                self.cu.cuMemcpyAsync(
                    target.pointer, origin.pointer, target.nbytes, handle, about="an array copy"
                )
        self.retain(handle, (destination, source))

    def memset(self, array: Any, value: float) -> None:
        """Sets every element of a dense array, on the current stream.

        Raises:
            ArgumentError: The array has gaps, its type is none that the driver knows, or it has
                elements of eight bytes whose halves would differ, which takes a kernel.
        """
        target = view(array)
        device = self.device_of(target)
        call, pattern, count = _pattern(target, value)
        handle = self.handle(None, device)
        if count:
            with self.activated(device):
                getattr(self.cu, call)(target.pointer, pattern, count, handle, about="a memset")
        self.retain(handle, (array,))

    def read(self, array: Any) -> list[Any]:
        """The values of a dense array, flat; waits for the device. Not inside a capture."""
        origin = view(array)
        device = self.device_of(origin)
        self._refuse("reading an array back to the host", device)
        self.synchronize(device)
        raw = ctypes.create_string_buffer(max(origin.nbytes, 1))
        if origin.nbytes:
            service = self.service(device)
            with self.inside(device):
                self.cu.cuMemcpyDtoHAsync(
                    ctypes.addressof(raw), origin.pointer, origin.nbytes, service, about="a read"
                )
                self.cu.cuStreamSynchronize(service, about="a read")
        values = struct.unpack_from(f"<{origin.size}{FORMATS[origin.typestr]}", raw)
        return list(values)

    def write(self, array: DeviceArray, values: Iterable[Any]) -> None:
        """Waits for the device, then sets the values of an array. Not inside a capture."""
        self._refuse("writing an array from the host", array.device)
        self.synchronize(array.device)
        self._send(array, list(values))

    def _send(self, array: DeviceArray, values: list[Any]) -> None:
        code = FORMATS[array.typestr]
        if code in "bBhHiIqQ":
            values = [int(value) for value in values]
        raw = bytearray(struct.pack(f"<{len(values)}{code}", *values))
        if len(raw) != array.nbytes:
            raise ArgumentError(
                doing="writing",
                subject=repr(array),
                met=f"{len(values)} values were given",
                remedy="Give one value an element.",
            )
        if raw:
            held = (ctypes.c_char * len(raw)).from_buffer(raw)
            service = self.service(array.device)
            with self.inside(array.device):
                self.cu.cuMemcpyHtoDAsync(
                    array.pointer, ctypes.addressof(held), len(raw), service, about="a write"
                )
                self.cu.cuStreamSynchronize(service, about="a write")


def _uncopyable(target: View, origin: View) -> list[str]:
    found = [
        f"source.{name}: destination has {there}, got {here}"
        for name, there, here in (
            ("shape", target.shape, origin.shape),
            ("typestr", target.typestr, origin.typestr),
        )
        if there != here
    ]
    for name, array in (("destination", target), ("source", origin)):
        if not array.row_major:
            found.append(f"{name}.strides: {array.strides} are not row-major and dense")
    return found


def _pattern(target: View, value: float) -> tuple[str, int, int]:
    """The native call that sets elements to ``value``, what it takes for it, and how often."""
    code = FORMATS.get(target.typestr)
    if code is None or not target.dense:
        raise ArgumentError(
            doing="setting",
            subject=f"an array of type {target.typestr!r} and strides {target.strides}",
            met="it has gaps" if code is not None else "its elements are of no known type",
            remedy="Set a dense array of numbers, or use the framework whose array it is.",
        )
    try:
        raw = struct.pack(f"<{code}", int(value) if code in "bBhHiIqQ" else value)
    except (OverflowError, struct.error) as error:
        raise ArgumentError(
            doing="setting",
            subject=f"an array of type {target.typestr!r}",
            met=f"its elements cannot hold {value!r}",
            remedy="Pass a number of the array's type.",
        ) from error
    size = target.itemsize
    while size > 1 and raw[: size // 2] == raw[size // 2 : size]:
        size //= 2
    if size > 4:
        raise ArgumentError(
            doing="setting",
            subject=f"an array of type {target.typestr!r}",
            met=f"the halves of {value!r} differ, and the driver sets at most four bytes at a time",
            remedy="Copy from an array of that value, or launch a kernel.",
        )
    call = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}[size]
    return call, int.from_bytes(raw[:size], "little"), target.nbytes // size
