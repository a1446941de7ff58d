"""Arrays as the libraries take them: pointer, leading dimension, transposed or not, batch step."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import cupy
import numpy

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_cupy.arrays import overlap

__all__ = ["Matrix", "apart", "batches", "contiguous", "dense", "destination", "floating"]


class Matrix(NamedTuple):
    """A matrix, or a batch of them in steady steps.

    Attributes:
        pointer: Address of the first element.
        rows: Its rows.
        columns: Its columns.
        leading: Elements from one row to the next; if transposed, from one column to the next.
        transposed: It lies in memory column by column.
        step: Elements from one matrix to the next, 0 if all are the same.
        array: What holds the memory.
    """

    pointer: int
    rows: int
    columns: int
    leading: int
    transposed: bool
    step: int
    array: Any

    @classmethod
    def of(cls, array: Any, lead: tuple[int, ...]) -> Matrix:
        """An array whose leading dimensions are, or broadcast to, ``lead``; copied if need be."""
        own = array.shape[:-2]
        if math.prod(own) != 1 and own != lead:
            array = cupy.ascontiguousarray(cupy.broadcast_to(array, (*lead, *array.shape[-2:])))
        found = cls._as_it_lies(array)
        if found is None:
            found = cls._as_it_lies(cupy.ascontiguousarray(array))
        assert found is not None
        return found

    @classmethod
    def _as_it_lies(cls, array: Any) -> Matrix | None:
        rows, columns = array.shape[-2:]
        item = array.itemsize
        # What an extent of one steps by addresses nothing.
        down = array.strides[-2] if rows > 1 else columns * item
        across = array.strides[-1] if columns > 1 else item
        step = _step(array)
        if step is None:
            return None
        if across == item and down >= columns * item and not down % item:
            leading, transposed = down // item, False
        elif array.strides[-2] == item and across >= rows * item and not across % item:
            leading, transposed = across // item, True
        else:
            return None
        return cls(int(array.data.ptr), rows, columns, leading, transposed, step // item, array)


def _step(array: Any) -> int | None:
    """Bytes from one matrix of a batch to the next; None if they vary."""
    extents, strides = array.shape[:-2], array.strides[:-2]
    if math.prod(extents) == 1:
        return 0
    wide = [(extent, stride) for extent, stride in zip(extents, strides, strict=True) if extent > 1]
    for (_, outer), (extent, inner) in itertools.pairwise(wide):
        if outer != extent * inner:
            return None
    step = int(wide[-1][1])
    return step if step >= 0 and not step % array.itemsize else None


def dense(name: str, array: Any) -> Any:
    """The array, which must be CuPy's.

    Raises:
        ArgumentTypeError: It is not.
    """
    if not isinstance(array, cupy.ndarray):
        raise ArgumentTypeError(
            doing="reading",
            subject=f"argument {name}",
            met=f"it is a {type(array).__module__}.{type(array).__name__}",
            remedy="Pass a cupy.ndarray: cupy.asarray(x), or cupy.from_dlpack(x).",
        )
    return array


def contiguous(array: Any) -> Any:
    """The array, or a row-major copy."""
    return cupy.ascontiguousarray(array) if array.ndim else array


def floating(first: Any, second: Any, *, allowed: str) -> Any:
    """The common dtype of two arrays, one of the type characters ``allowed``.

    Raises:
        ArgumentTypeError: It is another.
    """
    found = numpy.result_type(first.dtype, second.dtype)
    if found.char not in allowed:
        names = ", ".join(str(numpy.dtype(character)) for character in allowed)
        raise ArgumentTypeError(
            doing="computing with",
            subject=f"arrays of {first.dtype} and {second.dtype}",
            met=f"the library has no such operation in {found}",
            remedy=f"Convert them to one of {names}. (CuPy's own products of integers are kernels, "
            "and can be captured.)",
        )
    return found


def batches(first: Any, second: Any) -> tuple[int, ...]:
    """The leading dimensions of a product of two batches.

    Raises:
        ArgumentError: They do not broadcast.
    """
    one, two = first.shape[:-2], second.shape[:-2]
    try:
        return numpy.broadcast_shapes(one, two)
    except ValueError as error:
        raise ArgumentError(
            doing="multiplying",
            subject=f"batches of shapes {one} and {two}",
            met="they do not broadcast",
            remedy="Make extents equal, or one of them 1.",
        ) from error


def apart(array: Any, out: Any) -> Any:
    """The array, or a copy if writing ``out`` would change it: routines read while they write."""
    return array.copy() if out is not None and overlap(array, out) else array


def destination(out: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """``out``, checked, or a new array.

    Raises:
        ArgumentTypeError: ``out`` is no CuPy array.
        ArgumentError: It is not row-major, or of another shape or dtype.
    """
    if out is None:
        return cupy.empty(shape, dtype=dtype)
    given = dense("out", out)
    if given.shape != shape or given.dtype != dtype or not given.flags.c_contiguous:
        raise ArgumentError(
            doing="writing to",
            subject="argument out",
            met=f"it is {given.shape} of {given.dtype}, "
            f"{'' if given.flags.c_contiguous else 'not '}row-major",
            remedy=f"Pass a row-major array {shape} of {dtype}.",
        )
    return given
