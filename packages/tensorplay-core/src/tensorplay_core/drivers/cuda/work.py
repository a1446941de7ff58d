"""Work of the driver's own: streams, memory, kernels, copies, in the manner of the host driver.

Issued inside a capture it is recorded, and the graph keeps what it uses.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import ArgumentError, OperationRefused, SignatureMismatch

from .arrays import FORMATS, DeviceArray, View, itemsize, view
from .contexts import Contexts, CudaDevice
from .hot import Hot, hot_calls
from .kernels import copy_ptx, predicate_ptx
from .memory import Allocation, Memory
from .modules import Arguments, Function, Module, extents
from .parameters import LaunchParameters, parameters_of
from .streams import LEGACY, Current, Event, Stream, handle_of

if TYPE_CHECKING:
    from .captures import CudaCapture
    from .memory import PoolBlock

__all__ = ["Work"]

_IMAGES = {"predicates": predicate_ptx, "copy": copy_ptx}


class Work(Contexts):
    """Streams, arrays and launches. Devices default to the current one."""

    def __init__(self, driver: Any = None) -> None:
        super().__init__(driver)
        self.memory = Memory(self)
        self.current = Current()
        self.captures: weakref.WeakValueDictionary[int, CudaCapture] = weakref.WeakValueDictionary()
        # Held while a capture begins and while a device is waited for: waiting breaks captures.
        self.capture_lock = threading.RLock()
        self._services: dict[int, Stream] = {}
        self._shipped: dict[tuple[int, str], Module] = {}

    @cached_property
    def hot(self) -> Hot:
        """The calls of the hot path."""
        return hot_calls(self.cu)

    def stream(self, device: object = None) -> Stream:
        """A new non-blocking stream."""
        return Stream(self, self.find_device(device))

    def event(self, device: object = None) -> Event:
        """A new event."""
        return Event(self, self.find_device(device))

    @contextmanager
    def using(self, stream: object, device: object = None) -> Iterator[None]:
        """Makes ``stream`` current in this thread while entered."""
        if device is None and isinstance(stream, Stream):
            device = stream.device
        restore = self.make_current(self.find_device(device), handle_of(stream))
        try:
            yield
        finally:
            restore()

    def make_current(self, device: CudaDevice, handle: int) -> Callable[[], None]:
        """Makes a stream current in this thread; returns what undoes that."""
        streams = self.current.streams
        before = streams.get(device, 0)
        streams[device] = handle

        def restore() -> None:
            streams[device] = before

        return restore

    def handle(self, stream: object, device: CudaDevice) -> int:
        """The handle of a stream; of the current one for None."""
        return self.current.streams.get(device, 0) if stream is None else handle_of(stream)

    def fork(self, device: object = None) -> Stream:
        """A new stream whose work comes after all work so far on the current one."""
        where = self.find_device(device)
        side = self.stream(where)
        self._order(where, self.handle(None, where), side.handle)
        return side

    def join(self, stream: object, device: object = None) -> None:
        """Work on the current stream from here on comes after all work so far on ``stream``."""
        where = self.find_device(device)
        self._order(where, handle_of(stream), self.handle(None, where))

    def _order(self, device: CudaDevice, first: int, then: int) -> None:
        event = self.event(device)
        with self.activated(device):
            self.cu.cuEventRecord(event.native, first, about=f"stream {first:#x}")
            self.cu.cuStreamWaitEvent(then, event.native, 0, about=f"stream {then:#x}")

    def capture_at(self, handle: int) -> CudaCapture | None:
        """The capture or body that a stream is recorded into, if this driver knows it."""
        if not self.captures or handle in LEGACY:
            return None
        info = self.cu.capture_info(handle, about=f"stream {handle:#x}")
        return self.captures.get(info.id) if info.status else None

    def launch_parameters(self, node: Any) -> LaunchParameters | None:
        """What a captured kernel node was given; None for a node of another kind."""
        return parameters_of(self, node)

    def is_capturing(self, handle: int) -> bool:
        """True if a stream is capturing, whoever began it."""
        if handle in LEGACY:
            return False
        return bool(self.cu.cuStreamIsCapturing(handle, about=f"stream {handle:#x}"))

    def empty(
        self, shape: Sequence[int] | int, typestr: str = "<f4", device: object = None
    ) -> DeviceArray:
        """A new array, contents undefined; inside a capture from the capture's pool."""
        where = self.find_device(device)
        whole = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(whole) * itemsize(typestr)
        handle = self.handle(None, where)
        capture = self.capture_at(handle)
        owner: Allocation | PoolBlock
        if capture is None:
            owner = Allocation(self.memory, nbytes, where)
        else:
            owner = capture.pool.block(nbytes, capture, handle)
        return DeviceArray(owner, whole, typestr, where)

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

    def module(self, image: bytes | str, device: object = None) -> Module:
        """Device code from PTX text, a cubin or a fatbin."""
        raw = image.encode() if isinstance(image, str) else image
        return Module(self, self.find_device(device), raw)

    def shipped(self, device: CudaDevice, name: str) -> Module:
        """The driver's own device code, ``"predicates"`` or ``"copy"``, loaded once a device."""
        found = self._shipped.get((device, name))
        if found is None:
            found = Module(self, device, _IMAGES[name]())
            self._shipped[device, name] = found
        return found

    def launch(
        self,
        function: Function,
        grid: int | Iterable[int],
        block: int | Iterable[int],
        args: Sequence[Any] = (),
        *,
        shared: int = 0,
        stream: object = None,
        keep: Iterable[object] = (),
    ) -> None:
        """Launches a kernel on the current stream (or ``stream``).

        Args:
            function: Of ``module(...).function(name)``.
            grid: Blocks, as one to three extents.
            block: Threads of a block, as one to three extents.
            args: One a parameter: an array, an int, a float, None, or bytes.
            shared: Dynamic shared memory of a block, in bytes.
            stream: Where; None is the current stream.
            keep: What else a graph must keep alive for it.
        """
        arguments = Arguments(function, args)
        device = function.device
        handle = self.handle(stream, device)
        with self.activated(device):
            self.cu.cuLaunchKernel(
                function.native,
                *extents(grid),
                *extents(block),
                shared,
                handle,
                arguments.address,
                0,
                about=repr(function),
            )
        self.retain(handle, args, always=(function, *keep))

    def retain(self, handle: int, operands: Iterable[Any], always: Iterable[object] = ()) -> None:
        """Work just issued used ``operands``: if it was captured, its graph keeps them alive."""
        capture = self.capture_at(handle)
        if capture is None:
            return
        for operand in operands:
            if isinstance(operand, DeviceArray):
                capture.retain(operand.owner, operand.owner.born)
            elif not isinstance(operand, int | float | bytes | bytearray | None):
                capture.retain(operand, 0)
        for owned in always:
            capture.root.owned.keep(owned)

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
            with self.relaxed(), self.activated(device):
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
            with self.relaxed(), self.activated(array.device):
                self.cu.cuMemcpyHtoDAsync(
                    array.pointer, ctypes.addressof(held), len(raw), service, about="a write"
                )
                self.cu.cuStreamSynchronize(service, about="a write")

    def synchronize(self, device: object = None) -> None:
        """Waits for all work of a device; beside a capture, for this thread's current stream.

        Raises:
            OperationRefused: The current stream is capturing.
        """
        where = self.find_device(device)
        self._refuse("waiting for the device", where)
        with self.capture_lock, self.relaxed(), self.activated(where):
            if self.captures:
                handle = self.handle(None, where)
                self.cu.cuStreamSynchronize(handle, about=f"stream {handle:#x}")
            else:
                self.cu.cuCtxSynchronize(about=str(where))

    def service(self, device: CudaDevice) -> int:
        """A stream that never captures, for transfers and waits."""
        found = self._services.get(device)
        if found is None:
            found = self._services.setdefault(device, Stream(self, device))
        return found.handle

    def device_of(self, array: View) -> CudaDevice:
        """The GPU that holds an array."""
        if array.device is not None:
            return CudaDevice(array.device)
        which = self.native.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        with self.relaxed(), self.activated(self.current_device()):
            ordinal = self.cu.cuPointerGetAttribute(which, array.pointer, about="an array")
        return CudaDevice(int(ordinal))

    def _refuse(self, operation: str, device: CudaDevice) -> None:
        """Refuses before the driver does: then the capture stays whole."""
        if self.is_capturing(self.handle(None, device)):
            raise OperationRefused(
                operation=operation,
                met="the current stream is capturing, so nothing has run that could be waited for",
                remedy="Do it before the capture or after the replay.",
            )


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
