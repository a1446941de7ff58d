"""Products of sparse matrices by cuSPARSE, with the algorithms whose sums have one order."""

from __future__ import annotations

from typing import Any

import cupy

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.signature import a_type

from . import libraries
from .constants import NORMAL, SCALARS, TYPES
from .matrices import apart, contiguous, dense, destination, floating

__all__ = ["sparse_matmul"]

_ROW_MAJOR = 2
_VECTOR, _MATRIX = 3, 12
"""CUSPARSE_SPMV_CSR_ALG2 and CUSPARSE_SPMM_CSR_ALG3: the deterministic ones."""
_INDICES = {"i": 2, "l": 3, "q": 3}
"""cusparseIndexType of an index array, by its dtype's character."""


def sparse_matmul(a: Any, x: Any, *, out: Any = None) -> Any:
    """``a @ x`` of a sparse matrix and a dense vector or matrix, summed in one order always.

    Args:
        a: ``(m, k)``, a ``cupyx.scipy.sparse.csr_matrix``; float32, float64 or complex.
        x: ``(k,)`` or ``(k, n)``, of the same dtype.
        out: ``(m,)`` or ``(m, n)``, row-major. None makes it.

    Raises:
        ArgumentTypeError: ``a`` is no CSR matrix, ``x`` no array, or their dtypes differ.
        ArgumentError: Shapes do not fit.
        DriverUnavailable: nvmath-python is not installed.
    """
    if getattr(a, "format", None) != "csr" or not hasattr(a, "indptr"):
        raise ArgumentTypeError(
            doing="multiplying",
            subject=a_type(a),
            met="it is no CSR matrix",
            remedy="Convert it before the capture: a.tocsr().",
        )
    other = contiguous(apart(dense("x", x), out))
    dtype = floating(a.data, other, allowed="fdFD")
    if other.ndim not in (1, 2) or other.shape[0] != a.shape[1] or a.data.dtype != other.dtype:
        raise ArgumentError(
            doing="multiplying",
            subject=f"a sparse matrix {a.shape} of {a.data.dtype}",
            met=f"the other is {other.shape} of {other.dtype}",
            remedy="Pass a vector or matrix of as many rows as the matrix has columns, and of its "
            "dtype.",
        )
    result = destination(out, (a.shape[0], *other.shape[1:]), dtype)
    if result.size:
        _multiply(a, other, result)
    return result


def _multiply(a: Any, x: Any, result: Any) -> None:
    kind, scalars = TYPES[result.dtype.char], SCALARS[result.dtype.char]
    with libraries.using("cusparse") as (cusparse, handle):
        if x.ndim == 1:
            name, algorithm, operations = "sp_mv", _VECTOR, [NORMAL]
            destroy = cusparse.destroy_dn_vec
        else:
            name, algorithm, operations = "sp_mm", _MATRIX, [NORMAL, NORMAL]
            destroy = cusparse.destroy_dn_mat

        def described(array: Any) -> int:
            if array.ndim == 1:
                return int(cusparse.create_dn_vec(array.size, array.data.ptr, kind))
            rows, columns = array.shape
            return int(
                cusparse.create_dn_mat(rows, columns, columns, array.data.ptr, kind, _ROW_MAJOR)
            )

        matrix = cusparse.create_csr(
            *a.shape,
            a.data.size,
            *(a.indptr.data.ptr, a.indices.data.ptr, a.data.data.ptr),
            *(_INDICES[a.indptr.dtype.char], _INDICES[a.indices.dtype.char], 0, kind),
        )
        made: list[int] = []
        try:
            made += [described(x), described(result)]
            factors = (scalars.one, matrix, made[0], scalars.zero, made[1], kind, algorithm)
            ask = getattr(cusparse, f"{name}_buffer_size")
            space = cupy.empty(max(int(ask(handle, *operations, *factors)), 1), dtype="B")
            getattr(cusparse, name)(handle, *operations, *factors, space.data.ptr)
        finally:
            # Descriptions live on the host, and what was launched has read them.
            for one in made:
                destroy(one)
            cusparse.destroy_sp_mat(matrix)
