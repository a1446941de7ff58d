"""Buffers: the host driver's arrays, over any contiguous memory that Python can view."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import setitem
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.signature import a_type

if TYPE_CHECKING:
    from .capturing import Capturing
    from .ledger import Storage

__all__ = [
    "DTYPES",
    "Buffer",
    "cast_to",
    "copier",
    "filler",
    "flat",
    "memory_of",
    "overlap",
    "poison",
]

DTYPES = {
    "?": "bool",
    **{code: f"int{8 * struct.calcsize(code)}" for code in "bhilq"},
    **{code: f"uint{8 * struct.calcsize(code)}" for code in "BHILQ"},
    "f": "float32",
    "d": "float64",
}
"""The element types there are: ``struct``'s native type codes, and what arrays call them."""


class Buffer:
    """An array of numbers in host memory.

    Values are read by ``b[i]``, ``b.tolist()`` and ``bool(b)``, which a capture refuses: its work
    has not run. ``b[i:j]`` is a buffer over part of the same memory. Work reads and writes
    ``b.memory``, which for the host is what a device pointer is: handing it out is legal anywhere,
    following it inside a capture is not.

    Attributes:
        memory: The memory itself, contiguous, of the buffer's type and shape.
        storage: What buffers over the same memory share.
    """

    __slots__ = ("__weakref__", "_capturing", "memory", "storage")

    def __init__(self, capturing: Capturing, memory: memoryview, storage: Storage | None) -> None:
        self._capturing = capturing
        self.memory = memory
        self.storage = storage

    def alias(self) -> Buffer:
        """The same memory, without keeping its storage in use."""
        return Buffer(self._capturing, self.memory, None)

    @property
    def dtype(self) -> str:
        """Name of the element type: ``"float32"``, ``"bool"``, ``"int32"`` ..."""
        return DTYPES[self.memory.format]

    @property
    def typecode(self) -> str:
        """The element type as a code of ``struct``."""
        return self.memory.format

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.memory.shape or ()

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in bytes."""
        return self.memory.strides or ()

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.memory.nbytes

    @property
    def device(self) -> str:
        """``"host"``."""
        return "host"

    def __len__(self) -> int:
        return len(self.memory)

    def __repr__(self) -> str:
        extents = ", ".join(map(str, self.shape))
        return f"<host buffer {self.dtype}[{extents}]>"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and self.memory.ndim == 1:
            return Buffer(self._capturing, _contiguous(self.memory[index]), self.storage)
        self._capturing.refuse_read(f"{self!r}[{index!r}]")
        return self.memory[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._capturing.refuse_read(f"{self!r}[{index!r}] = ...")
        self.memory[index] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __bool__(self) -> bool:
        self._capturing.refuse_read(f"bool({self!r})")
        if self.nbytes != self.memory.itemsize:
            raise ArgumentError(
                doing="taking the truth of",
                subject=repr(self),
                met="it has more than one element",
                remedy="Compare elements: any(b.tolist()), all(b.tolist()).",
            )
        return bool(flat(self.memory)[0])

    def tolist(self) -> Any:
        """The values, nested as the shape is.

        Raises:
            OperationRefused: A capture forbids to read.
        """
        self._capturing.refuse_read(f"{self!r}.tolist()")
        return self.memory.tolist()


def memory_of(array: object, doing: str = "reading the memory of") -> memoryview:
    """The memory of a buffer or of anything with the buffer protocol, in native type codes.

    Raises:
        ArgumentTypeError: It has no buffer protocol, or elements of a type there is none for.
        ArgumentError: It is not contiguous in C order, or empty.
    """
    if isinstance(array, Buffer):
        return array.memory
    try:
        memory = memoryview(array)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentTypeError(
            doing=doing,
            subject=a_type(array),
            met="it has no buffer protocol",
            remedy="Pass a buffer of the host driver, an array.array, a bytearray or an array of "
            "NumPy.",
        ) from error
    return _native(_contiguous(memory), doing)


def _contiguous(memory: memoryview) -> memoryview:
    if not memory.c_contiguous or memory.nbytes == 0:
        met = "it is empty" if memory.nbytes == 0 else f"its strides are {memory.strides}"
        raise ArgumentError(
            doing="using",
            subject=f"memory of shape {memory.shape}",
            met=met,
            remedy="Pass memory that is contiguous in C order and has an element at least.",
        )
    return memory


def _native(memory: memoryview, doing: str) -> memoryview:
    """The same memory with a native type code, for exporters that spell the byte order out."""
    code = memory.format
    if code in DTYPES:
        return memory
    kinds = {"<" if sys.byteorder == "little" else ">", "=", "@"}
    if len(code) == 2 and code[0] in kinds and code[1] in DTYPES:
        kind = DTYPES[code[1]].rstrip("0123456789")
        for native, name in DTYPES.items():
            if name.rstrip("0123456789") == kind and struct.calcsize(native) == memory.itemsize:
                return cast_to(memory, native, memory.shape)
    raise ArgumentTypeError(
        doing=doing,
        subject=f"memory of shape {memory.shape}",
        met=f"its elements are of type {code!r}",
        remedy=f"Pass elements of one of the types {', '.join(dict.fromkeys(DTYPES.values()))}.",
    )


def cast_to(memory: memoryview, typecode: str, shape: tuple[int, ...] | None = None) -> memoryview:
    """The same memory as another type, of ``shape`` or of one dimension."""
    raw: Any = memory.cast("B")  # The stubs know literal type codes only.
    cast: memoryview = raw.cast(typecode) if shape is None else raw.cast(typecode, shape)
    return cast


def flat(memory: memoryview) -> memoryview:
    """The same memory with one dimension."""
    return cast_to(memory, memory.format)


def overlap(first: memoryview, second: memoryview) -> bool:
    """True if the two may share memory; exact unless one is read-only memory of unknown origin."""
    if isinstance(first.obj, bytes) or isinstance(second.obj, bytes):
        return False
    if first.readonly or second.readonly:
        return True
    one, two = (ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in (first, second))
    return one < two + second.nbytes and two < one + first.nbytes


def poison(memory: memoryview) -> None:
    """Fills memory nothing has written yet with NaN, or with bytes 0xCD where there is no NaN."""
    # All ones is a NaN in every IEEE format.
    byte = b"\xff" if memory.format in "fd" else b"\xcd"
    memory.cast("B")[:] = byte * memory.nbytes


def filler(memory: memoryview, value: Any) -> Callable[[], object]:
    """Work that sets every element to ``value``, converted now.

    Raises:
        ArgumentTypeError: The element type cannot hold such a value.
    """
    count = memory.nbytes // memory.itemsize
    element = cast_to(memoryview(bytearray(memory.itemsize)), memory.format)
    try:
        element[0] = converter(memory.format)(value)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            doing="filling",
            subject=f"memory of type {DTYPES[memory.format]}",
            met=f"the value is {value!r}",
            remedy="Pass a number.",
        ) from error
    return _assignment(memory.cast("B"), memoryview(element.tobytes() * count))


def copier(destination: memoryview, source: memoryview) -> Callable[[], object]:
    """Work that copies ``source`` into ``destination``, of equal shape, converting its elements."""
    if destination.format == source.format:
        return _assignment(destination.cast("B"), source.cast("B"))
    into, out_of, convert = flat(destination), flat(source), converter(destination.format)

    def copy() -> None:
        for index, value in enumerate(out_of.tolist()):
            into[index] = convert(value)

    return copy


def _assignment(into: memoryview, source: memoryview) -> Callable[[], object]:
    # No Python frame at replay: it is one call from C into C.
    return partial(setitem, into, slice(None), source)


def converter(code: str) -> Callable[[Any], Any]:
    """How a number becomes an element of type ``code``, as C converts: integers wrap around."""
    if code == "?":
        return bool
    if code in "fd":
        return float
    bits = 8 * struct.calcsize(code)
    span, top = 1 << bits, 1 << (bits - 1) if code.islower() else 1 << bits

    def wrap(value: Any) -> int:
        rest = int(value) % span
        return rest if rest < top else rest - span

    return wrap
