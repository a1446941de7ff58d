"""CuPy arrays as the driver handles them: made, copied, compared, and spoken of without reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy

from tensorplay_core.errors import ArgumentTypeError, SignatureMismatch
from tensorplay_core.signature import a_type

from .streams import capturing

__all__ = [
    "Reference",
    "as_cupy",
    "check_of",
    "copy_into",
    "like",
    "overlap",
    "pointer_of",
    "reference",
]

Check = Callable[[Sequence[Any]], bool]


class Reference:
    """An array's memory with its form. Its ``repr`` reads nothing back, as CuPy's own would."""

    def __init__(self, array: Any) -> None:
        self._memory = array.data
        self._text = (
            f"cupy array of shape {array.shape}, {array.dtype}, at {int(array.data.ptr):#x}"
        )
        self.device = int(array.data.device_id)
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (int(array.data.ptr), False),
            "strides": None if array.flags.c_contiguous else array.strides,
            "stream": None,
        }

    def __repr__(self) -> str:
        return f"<{self._text}>"


def reference(array: Any) -> Any:
    """A ``Reference`` to a CuPy array; anything else as it is."""
    return Reference(array) if isinstance(array, cupy.ndarray) else array


def as_cupy(array: Any) -> Any:
    """The array itself, or the memory of another library's array as one of CuPy's.

    Raises:
        ArgumentTypeError: It is no array on a GPU.
    """
    if isinstance(array, cupy.ndarray):
        return array
    if not hasattr(array, "__cuda_array_interface__"):
        raise ArgumentTypeError(
            doing="reading",
            subject=a_type(array),
            met="it is no array on a GPU",
            remedy="Pass a CuPy array, or any object with __cuda_array_interface__.",
        )
    return cupy.asarray(_Streamless(array) if capturing() else array)


def pointer_of(array: Any) -> int:
    """Address of the first element."""
    return array.data.ptr  # type: ignore[no-any-return]


def like(array: Any) -> Any:
    """A new array of the same shape, dtype and order, on the current stream.

    Raises:
        ArgumentTypeError: It is no array on a GPU.
    """
    return cupy.empty_like(as_cupy(array))


def copy_into(destination: Any, source: Any) -> None:
    """Copies ``source`` into ``destination`` on the current stream; dtype and strides may differ.

    Args:
        destination: A CuPy array, or any array on a GPU.
        source: An array of the same shape, on a GPU or (outside a capture) on the host.

    Raises:
        SignatureMismatch: The shapes differ: nothing is broadcast.
        ArgumentTypeError: One of them is no array.
    """
    target = as_cupy(destination)
    shape = getattr(source, "shape", None)
    if shape is None or tuple(shape) != target.shape:
        got = "none" if shape is None else tuple(shape)
        raise SignatureMismatch(
            differences=[f"source.shape: destination has {target.shape}, got {got}"],
            doing="copying",
            subject="an array",
            remedy="Copy between arrays of one shape: nothing is broadcast.",
        )
    if isinstance(source, numpy.ndarray):
        target[...] = cupy.asarray(source)
        return
    cupy.copyto(target, as_cupy(source), casting="unsafe")


def overlap(first: Any, second: Any) -> bool:
    """True if the two may share memory. An array on the host shares none with one on a GPU."""
    ranges = [_reach(array) for array in (first, second)]
    if None in ranges:
        return False
    (low, high), (start, end) = ranges  # type: ignore[misc]
    return bool(low < end and start < high)


def check_of(static: Sequence[Any]) -> Check:
    """A fast check of count, shape, strides, dtype and device against ``static``.

    It says no to anything but plain CuPy arrays, and to strides that differ only where an extent
    is 1: the slow comparison decides there.
    """
    kind = cupy.ndarray
    expected = [(array.shape, array.strides, array.dtype, array.data.device_id) for array in static]
    count = len(expected)

    def check(inputs: Sequence[Any]) -> bool:
        if len(inputs) != count:
            return False
        for array, facts in zip(inputs, expected, strict=True):
            if type(array) is not kind or facts != (
                array.shape,
                array.strides,
                array.dtype,
                array.data.device_id,
            ):
                return False
        return True

    return check


class _Streamless:
    """An array that names no stream: CuPy would wait for it, which inside a capture is illegal."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._array.__cuda_array_interface__, "stream": None}


def _reach(array: Any) -> tuple[int, int] | None:
    if not isinstance(array, cupy.ndarray) and not hasattr(array, "__cuda_array_interface__"):
        return None
    seen = as_cupy(array)
    start = int(seen.data.ptr)
    spans = [step * (extent - 1) for step, extent in zip(seen.strides, seen.shape, strict=True)]
    if not seen.size:
        return start, start
    low = start + sum(span for span in spans if span < 0)
    high = start + sum(span for span in spans if span > 0) + seen.itemsize
    return low, high
