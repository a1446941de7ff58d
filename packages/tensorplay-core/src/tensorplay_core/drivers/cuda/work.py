"""Work of the driver's own: streams, memory, kernels, copies, in the manner of the host driver.

Issued inside a capture it is recorded, and the graph keeps what it uses.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import OperationRefused

from .arrays import DeviceArray, View, itemsize
from .contexts import Contexts, CudaDevice
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
        # Of the driver's functions, by name; and what of the compiled library was given them.
        self.addresses: dict[str, int] = {}
        self.bound: dict[tuple[str, ...], Callable[..., Any]] = {}
        self._services: dict[int, Stream] = {}
        self._shipped: dict[tuple[int, str], Module] = {}

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
        hot = self.hot
        try:
            if not hot.capturing(hot.handle(handle)):
                return False
        except hot.raised:  # What is wrong with it, the other call says.
            pass
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

    def synchronize(self, device: object = None) -> None:
        """Waits for all work of a device; beside a capture, for this thread's current stream.

        Raises:
            OperationRefused: The current stream is capturing.
        """
        where = self.find_device(device)
        self._refuse("waiting for the device", where)
        with self.capture_lock, self.inside(where):
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
        with self.inside(self.current_device()):
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
