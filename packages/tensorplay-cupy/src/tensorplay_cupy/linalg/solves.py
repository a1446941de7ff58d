"""Triangular solves by cuBLAS, Cholesky factors by cuSOLVER."""

from __future__ import annotations

import math
from typing import Any, Literal

import cupy

from tensorplay_core.errors import ArgumentError, ArgumentTypeError

from . import libraries
from .constants import (
    ADJOINT,
    HOST_POINTERS,
    LOWER,
    NORMAL,
    PREFIX,
    RIGHT,
    SCALARS,
    TRANSPOSED,
    UPPER,
)
from .matrices import apart, contiguous, dense, destination, floating
from .products import workspace

__all__ = ["cho_solve", "cholesky", "solve_triangular"]

_OPERATIONS = {"N": NORMAL, "T": TRANSPOSED, "C": ADJOINT}


def solve_triangular(
    a: Any,
    b: Any,
    *,
    lower: bool = False,
    trans: Literal["N", "T", "C"] = "N",
    unit_diagonal: bool = False,
    out: Any = None,
) -> Any:
    """Solves ``op(a) x = b`` for a triangular ``a``, of which the other triangle is not read.

    Args:
        a: ``(n, n)``; float32, float64, complex64 or complex128.
        b: ``(n,)`` or ``(n, k)``.
        lower: ``a`` is lower triangular, else upper.
        trans: ``op`` is nothing, the transpose, or the conjugate transpose.
        unit_diagonal: Take the diagonal for ones without reading it.
        out: Where to put ``x``; it may be ``b``. None makes it.

    Raises: as ``matmul``.
    """
    matrix, right = dense("a", a), dense("b", b)
    dtype = floating(matrix, right, allowed="fdFD")
    _square(matrix, right)
    if trans not in _OPERATIONS:
        raise ArgumentError(
            doing="solving",
            subject="a triangular system",
            met=f"trans is {trans!r}",
            remedy="Pass 'N', 'T' or 'C'.",
        )
    matrix = contiguous(apart(matrix, out).astype(dtype, copy=False))
    result = destination(out, right.shape, dtype)
    if result is not right:
        cupy.copyto(result, apart(right, out), casting="same_kind")
    count = matrix.shape[0]
    sides = result.size // count if count else 0
    if not sides:
        return result
    # Row-major arrays are the transposed ones in the library's order: X' op(A)' = B'.
    with libraries.using("cublas") as (cublas, handle):
        space = workspace(cublas, handle)
        cublas.set_pointer_mode(handle, HOST_POINTERS)
        getattr(cublas, f"{PREFIX[dtype.char]}trsm")(
            handle,
            RIGHT,
            UPPER if lower else LOWER,
            _OPERATIONS[trans],
            int(unit_diagonal),
            sides,
            count,
            SCALARS[dtype.char].one,
            *(matrix.data.ptr, count),
            *(result.data.ptr, sides),
        )
        del space
    return result


def cholesky(a: Any, *, info: Any = None) -> Any:
    """The lower triangular ``l`` with ``a = l @ l.conj().T``.

    Nobody can raise on the host when a replay meets a matrix that is not positive definite: all of
    ``l`` is NaN then.

    Args:
        a: ``(n, n)``, Hermitian; its lower triangle is read. float32, float64 or complex.
        info: One int32 array of one element, which is set to 0 or to the number of the first minor
            that is not positive; for a predicate, say. None makes one.

    Raises: as ``matmul``.
    """
    matrix = dense("a", a)
    dtype = floating(matrix, matrix, allowed="fdFD")
    _square(matrix, matrix)
    told = cupy.zeros(1, dtype="i") if info is None else dense("info", info)
    if told.dtype.char != "i" or told.size != 1:
        raise ArgumentTypeError(
            doing="factoring",
            subject="a matrix",
            met=f"info is {told.dtype} and holds {told.size} elements",
            remedy="Pass an int32 array of one element.",
        )
    work = cupy.array(matrix, dtype=dtype, order="C", copy=True)
    count = work.shape[0]
    if not count:
        return work
    with libraries.using("cusolverDn") as (cusolver, handle):
        name = f"{PREFIX[dtype.char]}potrf"
        # The lower triangle of a row-major array is the upper one in the library's order.
        size = getattr(cusolver, f"{name}_buffer_size")(handle, UPPER, count, work.data.ptr, count)
        space = cupy.empty(max(int(size), 1), dtype=dtype)
        getattr(cusolver, name)(
            handle, UPPER, count, work.data.ptr, count, space.data.ptr, int(size), told.data.ptr
        )
        del space
    whole = cupy.equal(told.reshape(()), 0)
    return cupy.where(whole, cupy.tril(work), work.dtype.type(math.nan))


def cho_solve(l: Any, b: Any, *, out: Any = None) -> Any:  # noqa: E741
    """Solves ``a x = b`` with the ``l`` that ``cholesky(a)`` gave.

    Args:
        l: ``(n, n)``, lower triangular.
        b: ``(n,)`` or ``(n, k)``.
        out: Where to put ``x``; it may be ``b``. None makes it.

    Raises: as ``matmul``.
    """
    half = solve_triangular(l, b, lower=True, out=out)
    return solve_triangular(l, half, lower=True, trans="C", out=half)


def _square(matrix: Any, right: Any) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or right.ndim not in (1, 2):
        met = f"the matrix is {matrix.shape}, the right side {right.shape}"
    elif right.shape[0] != matrix.shape[0]:
        met = f"the matrix has {matrix.shape[0]} rows, the right side {right.shape[0]}"
    else:
        return
    raise ArgumentError(
        doing="solving",
        subject="a linear system",
        met=met,
        remedy="Pass a square matrix, and as many rows on the right side; no batches.",
    )
