"""Dense products by cuBLAS."""

from __future__ import annotations

import math
from typing import Any

import cupy

from tensorplay_core.errors import ArgumentError

from . import libraries
from .constants import COMPUTE, DEVICE_POINTERS, HOST_POINTERS, SCALARS, SUMS, TYPES
from .matrices import Matrix, apart, batches, contiguous, dense, destination, floating

__all__ = ["dot", "gemv", "matmul", "workspace"]

_DEFAULT_GEMM = -1


def matmul(a: Any, b: Any, *, out: Any = None) -> Any:
    """``a @ b``, batched over leading dimensions, which broadcast.

    Args:
        a: ``(..., m, k)`` or ``(k,)``; float16, float32, float64, complex64 or complex128.
        b: ``(..., k, n)`` or ``(k,)``.
        out: Where to put it: row-major, of the result's shape and dtype. None makes it.

    Returns:
        ``(..., m, n)``, without the dimensions that a vector does not have. float16 is summed in
        float32; TF32 is not used.

    Raises:
        ArgumentTypeError: No CuPy arrays of these dtypes.
        ArgumentError: Shapes do not fit.
        DriverUnavailable: nvmath-python is not installed.
    """
    left, right = dense("a", a), dense("b", b)
    dtype = floating(left, right, allowed="efdFD")
    left, right = left.astype(dtype, copy=False), right.astype(dtype, copy=False)
    one, two = (
        left[None, :] if left.ndim == 1 else left,
        right[:, None] if right.ndim == 1 else right,
    )
    if one.shape[-1] != two.shape[-2]:
        raise ArgumentError(
            doing="multiplying",
            subject=f"arrays of shapes {left.shape} and {right.shape}",
            met=f"their inner extents are {one.shape[-1]} and {two.shape[-2]}",
            remedy="Make the last of the first equal to the last but one of the second.",
        )
    lead = batches(one, two)
    shape = (*lead, *one.shape[-2:-1], *two.shape[-1:])
    kept = (
        *lead,
        *(shape[-2:-1] if left.ndim > 1 else ()),
        *(shape[-1:] if right.ndim > 1 else ()),
    )
    result = destination(out, kept, dtype)
    one, two = apart(one, out), apart(two, out)
    if result.size and one.shape[-1]:
        _gemm(Matrix.of(one, lead), Matrix.of(two, lead), result, math.prod(lead))
    elif result.size:
        result.fill(0)
    return result


def dot(a: Any, b: Any, *, out: Any = None) -> Any:
    """The dot product of two vectors, a 0-dimensional array; of matrices their product.

    Args:
        a: ``(k,)`` or ``(m, k)``.
        b: ``(k,)`` or ``(k, n)``.
        out: Where to put it. None makes it.

    Raises: as ``matmul``.
    """
    left, right = dense("a", a), dense("b", b)
    if left.ndim != 1 or right.ndim != 1:
        return matmul(left, right, out=out)
    dtype = floating(left, right, allowed="efdFD")
    if left.shape != right.shape:
        raise ArgumentError(
            doing="multiplying",
            subject=f"vectors of {left.size} and {right.size} elements",
            met="their lengths differ",
            remedy="Pass vectors of one length.",
        )
    result = destination(out, (), dtype)
    if not left.size:
        result.fill(0)
        return result
    left, right = (contiguous(apart(one, out).astype(dtype, copy=False)) for one in (left, right))
    kind, sums = TYPES[dtype.char], SUMS[dtype.char]
    with libraries.using("cublas") as (cublas, handle):
        space = workspace(cublas, handle)
        cublas.set_pointer_mode(handle, DEVICE_POINTERS)
        cublas.dot_ex(
            handle,
            left.size,
            *(left.data.ptr, kind, 1),
            *(right.data.ptr, kind, 1),
            *(result.data.ptr, kind),
            sums,
        )
        del space
    return result


def gemv(a: Any, x: Any, *, trans: bool = False, out: Any = None) -> Any:
    """``a @ x`` of a matrix and a vector; with ``trans`` of the transposed matrix.

    Args:
        a: ``(..., m, n)``.
        x: ``(n,)``; with ``trans`` ``(m,)``.
        trans: Transpose ``a`` first.
        out: Where to put it. None makes it.

    Raises: as ``matmul``.
    """
    matrix = dense("a", a)
    if matrix.ndim < 2 or getattr(x, "ndim", 1) != 1:
        raise ArgumentError(
            doing="multiplying",
            subject=f"arrays of {matrix.ndim} and {getattr(x, 'ndim', '?')} dimensions",
            met="they are not a matrix (or a batch of them) and a vector",
            remedy="Use matmul for other products.",
        )
    return matmul(matrix.swapaxes(-1, -2) if trans else matrix, x, out=out)


def _gemm(left: Matrix, right: Matrix, result: Any, count: int) -> None:
    character = result.dtype.char
    kind, scalars = TYPES[character], SCALARS[character]
    with libraries.using("cublas") as (cublas, handle):
        space = workspace(cublas, handle)
        cublas.set_pointer_mode(handle, HOST_POINTERS)
        # In the library's column-major order row-major arrays are transposed: C' = B' A'.
        shape = (int(right.transposed), int(left.transposed), right.columns, left.rows)
        inner, step = left.columns, left.rows * right.columns
        if count == 1:
            cublas.gemm_ex(
                handle,
                *shape,
                inner,
                scalars.one,
                *(right.pointer, kind, right.leading),
                *(left.pointer, kind, left.leading),
                scalars.zero,
                *(result.data.ptr, kind, right.columns),
                COMPUTE[character],
                _DEFAULT_GEMM,
            )
        else:
            cublas.gemm_strided_batched_ex(
                handle,
                *shape,
                inner,
                scalars.one,
                *(right.pointer, kind, right.leading, right.step),
                *(left.pointer, kind, left.leading, left.step),
                scalars.zero,
                *(result.data.ptr, kind, right.columns, step),
                count,
                COMPUTE[character],
                _DEFAULT_GEMM,
            )
        del space


def workspace(cublas: Any, handle: int) -> Any:
    """Work space for the next routine. The stream orders its reuse, so it may be let go at once."""
    major = int(cupy.cuda.Device().compute_capability[:-1])
    size = (32 if major >= 9 else 8) << 20
    space = cupy.empty(size, dtype="B")
    cublas.set_workspace(handle, space.data.ptr, size)
    return space
