"""Arrays: the driver's own, and what it reads off those of torch, CuPy, numba and others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.signature import a_type

if TYPE_CHECKING:
    from .contexts import CudaDevice
    from .memory import Allocation, PoolBlock

__all__ = ["FORMATS", "DeviceArray", "View", "itemsize", "overlap", "view"]

FORMATS = {
    "|b1": "?",
    "|i1": "b",
    "|u1": "B",
    "<i2": "h",
    "<u2": "H",
    "<i4": "i",
    "<u4": "I",
    "<i8": "q",
    "<u8": "Q",
    "<f2": "e",
    "<f4": "f",
    "<f8": "d",
}
"""Element types that the driver moves to and from the host, with their ``struct`` codes."""

_TORCH = {
    "bool": "|b1",
    "int8": "|i1",
    "uint8": "|u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
}


class DeviceArray:
    """A dense row-major array in device memory. CuPy, numba and torch take it as it is.

    Attributes:
        pointer: Address of its first element.
        shape: Extents.
        typestr: Element type as in NumPy's array interface: ``"<f4"``, ``"|b1"``, ``"<i4"``.
        device: The GPU it is on.
        owner: What holds the memory.
        signature: What staging compares: shape, element type, device. The same object for equal
            ones, mostly.
    """

    __slots__ = (
        "__weakref__",
        "device",
        "nbytes",
        "owner",
        "pointer",
        "shape",
        "signature",
        "typestr",
    )

    def __init__(
        self,
        owner: Allocation | PoolBlock,
        shape: tuple[int, ...],
        typestr: str,
        device: CudaDevice,
    ) -> None:
        self.owner, self.shape, self.typestr, self.device = owner, shape, typestr, device
        self.pointer = owner.address
        self.nbytes = math.prod(shape) * itemsize(typestr)
        self.signature = _signature(shape, typestr, device)

    @property
    def dtype(self) -> str:
        """The same as ``typestr``."""
        return self.typestr

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in bytes."""
        return _dense(self.shape, itemsize(self.typestr))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.typestr,
            "data": (self.pointer, False),
            "strides": None,
            # No stream: a consumer would wait for it, which inside a capture is illegal.
            "stream": None,
        }

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __repr__(self) -> str:
        return f"<array {self.typestr}{list(self.shape)} on {self.device} at {self.pointer:#x}>"


@lru_cache(maxsize=4096)
def _signature(shape: tuple[int, ...], typestr: str, device: int) -> tuple[object, ...]:
    return shape, typestr, device


@dataclass(frozen=True, slots=True)
class View:
    """What the driver needs to know of any array.

    Attributes:
        pointer: Address of its first element.
        shape: Extents.
        typestr: Element type.
        itemsize: Bytes of an element.
        strides: Steps in bytes, None if dense and row-major.
        device: Ordinal of its GPU, None where the array does not say.
    """

    pointer: int
    shape: tuple[int, ...]
    typestr: str
    itemsize: int
    strides: tuple[int, ...] | None
    device: int | None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * self.itemsize

    @property
    def row_major(self) -> bool:
        """True if it is dense and row-major."""
        return (
            self.strides is None
            or not self.size
            or _same_steps(self.shape, self.strides, _dense(self.shape, self.itemsize))
        )

    @property
    def dense(self) -> bool:
        """True if its elements fill one piece of memory, in whatever order."""
        if self.row_major:
            return True
        steps = self.strides or ()
        reach = self.itemsize
        for step, extent in sorted(zip(steps, self.shape, strict=True)):
            if extent > 1:
                if step != reach:
                    return False
                reach *= extent
        return True

    @property
    def reach(self) -> tuple[int, int]:
        """First address it may touch, and the one after the last."""
        if not self.size:
            return self.pointer, self.pointer
        steps = self.strides if self.strides is not None else _dense(self.shape, self.itemsize)
        spans = [step * (extent - 1) for step, extent in zip(steps, self.shape, strict=True)]
        low = sum(span for span in spans if span < 0)
        high = sum(span for span in spans if span > 0)
        return self.pointer + low, self.pointer + high + self.itemsize


def itemsize(typestr: str) -> int:
    """Bytes of an element of the array interface's type string.

    Raises:
        ArgumentError: It is no such string.
    """
    if not typestr[2:].isdecimal():
        raise ArgumentError(
            doing="reading",
            subject=f"element type {typestr!r}",
            met="the array interface has no such type",
            remedy="Name one as NumPy's array interface does: '<f4', '|b1', '<i8'.",
        )
    return int(typestr[2:])


def view(array: Any) -> View:
    """Reads an array: the driver's own, torch's, or one with ``__cuda_array_interface__``.

    Raises:
        ArgumentTypeError: It is no array in device memory.
    """
    if isinstance(array, DeviceArray):
        bytes_each = itemsize(array.typestr)
        return View(array.pointer, array.shape, array.typestr, bytes_each, None, int(array.device))
    if callable(getattr(array, "data_ptr", None)) and hasattr(array, "element_size"):
        return _torch_like(array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        raise _no_array(array, f"it is {a_type(array)}")
    strides = interface.get("strides")
    typestr = str(interface["typestr"])
    return View(
        int(interface["data"][0]),
        tuple(int(extent) for extent in interface["shape"]),
        typestr,
        itemsize(typestr),
        None if strides is None else tuple(int(step) for step in strides),
        _ordinal(getattr(array, "device", None)),
    )


def overlap(first: View, second: View) -> bool:
    """True if the two may share memory."""
    one, other = first.reach, second.reach
    return one[0] < other[1] and other[0] < one[1]


def _torch_like(array: Any) -> View:
    device = array.device
    if getattr(device, "type", "cuda") != "cuda":
        raise _no_array(array, f"it is on {device}")
    bytes_each = int(array.element_size())
    name = str(array.dtype).rpartition(".")[2]
    stride: Callable[[], tuple[int, ...]] = array.stride
    return View(
        int(array.data_ptr()),
        tuple(int(extent) for extent in array.shape),
        _TORCH.get(name, f"|{name}"),
        bytes_each,
        tuple(int(step) * bytes_each for step in stride()),
        _ordinal(device),
    )


def _ordinal(device: Any) -> int | None:
    for value in (device, getattr(device, "index", None), getattr(device, "id", None)):
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
    return None


def _dense(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    steps = []
    step = itemsize
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def _same_steps(shape: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return all(
        one == other for one, other, extent in zip(first, second, shape, strict=True) if extent > 1
    )


def _no_array(array: object, met: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        doing="reading",
        subject=f"array {type(array).__name__}",
        met=met,
        remedy="Pass an array in GPU memory: of torch, CuPy, numba, this driver, or any object "
        "with __cuda_array_interface__.",
    )
