"""Stand-ins for cuBLAS, cuSPARSE and cuSOLVER that do their work in NumPy, on memory of the host.

They take pointers and leading dimensions in the libraries' column-major order, so a call that mixes
them up gives other numbers.
"""

from __future__ import annotations

import ctypes

import cupy
import numpy

DTYPES = {2: "e", 0: "f", 1: "d", 4: "F", 5: "D"}


def on_device(array):
    """A CuPy array on the memory of a NumPy array."""
    memory = cupy.cuda.UnownedMemory(array.ctypes.data, max(array.nbytes, 1), array, 0)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(array.shape, array.dtype, pointer, strides=array.strides)


def at(address, shape, strides, dtype):
    """A NumPy array at an address; strides in elements."""
    item = numpy.dtype(dtype).itemsize
    reach = 1 + sum(step * (extent - 1) for step, extent in zip(strides, shape, strict=True))
    buffer = (ctypes.c_char * (reach * item)).from_address(int(address))
    return numpy.ndarray(shape, dtype, buffer, strides=[step * item for step in strides])


def on_host(array):
    """What lies in the memory of such an array."""
    strides = [step // array.itemsize for step in array.strides]
    return at(array.data.ptr, array.shape, strides, array.dtype)


def columns(address, rows, count, leading, dtype):
    """A column-major matrix."""
    assert leading >= max(rows, 1)
    return at(address, (rows, count), (1, leading), dtype)


def turned(matrix, operation):
    return {0: matrix, 1: matrix.T, 2: matrix.conj().T}[operation]


class Blas:
    """cuBLAS, as far as it is asked here."""

    def __init__(self):
        self.called, self.mode, self.space = [], None, 0

    def set_pointer_mode(self, handle, mode):
        self.mode = mode

    def set_workspace(self, handle, pointer, size):
        assert pointer
        self.space = size

    def _scalar(self, address, dtype):
        assert self.mode == 0
        return at(address, (1,), (1,), {"e": "f"}.get(dtype, dtype))[0]

    def gemm_ex(
        self, handle, ta, tb, m, n, k, alpha, a, at_, lda, b, bt, ldb, beta, c, ct, ldc, *_
    ):
        self.called.append("gemm_ex")
        self._gemm(ta, tb, m, n, k, alpha, a, at_, lda, b, bt, ldb, beta, c, ct, ldc)

    def gemm_strided_batched_ex(
        self, handle, ta, tb, m, n, k, alpha, a, at_, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc, sc,
        count, *_,
    ):  # fmt: skip
        self.called.append("gemm_strided_batched_ex")
        item = numpy.dtype(DTYPES[ct]).itemsize
        for place in range(count):
            one, two, three = (p + place * s * item for p, s in ((a, sa), (b, sb), (c, sc)))
            self._gemm(ta, tb, m, n, k, alpha, one, at_, lda, two, bt, ldb, beta, three, ct, ldc)

    def _gemm(self, ta, tb, m, n, k, alpha, a, at_, lda, b, bt, ldb, beta, c, ct, ldc):
        assert at_ == bt == ct
        dtype = DTYPES[ct]
        assert self._scalar(beta, dtype) == 0
        left = columns(a, *((k, m) if ta else (m, k)), lda, dtype)
        right = columns(b, *((n, k) if tb else (k, n)), ldb, dtype)
        product = turned(left, ta) @ turned(right, tb)
        columns(c, m, n, ldc, dtype)[...] = self._scalar(alpha, dtype) * product

    def dot_ex(self, handle, n, x, xt, incx, y, yt, incy, result, rt, sums):
        assert self.mode == 1
        dtype = DTYPES[rt]
        one, two = at(x, (n,), (incx,), DTYPES[xt]), at(y, (n,), (incy,), DTYPES[yt])
        at(result, (1,), (1,), dtype)[0] = (one.astype(DTYPES[sums]) * two).sum()

    def __getattr__(self, name):
        dtype = {"strsm": "f", "dtrsm": "d", "ctrsm": "F", "ztrsm": "D"}[name]

        def trsm(handle, side, uplo, trans, unit, m, n, alpha, a, lda, b, ldb):
            assert side == 1  # x op(a) = b
            whole = columns(a, n, n, lda, dtype)
            triangle = (numpy.triu if uplo else numpy.tril)(whole)
            if unit:
                numpy.fill_diagonal(triangle, 1)
            right = columns(b, m, n, ldb, dtype)
            operator = turned(triangle, trans)
            right[...] = numpy.linalg.solve(operator.T, self._scalar(alpha, dtype) * right.T).T

        return trsm


class Sparse:
    """cuSPARSE, as far as it is asked here."""

    def __init__(self):
        self.made, self.algorithms = {}, []

    def _keep(self, one):
        self.made[len(self.made) + 1 + 1000] = one
        return len(self.made) + 1000

    def create_csr(self, rows, cols, nnz, offsets, indices, values, ot, it, base, vt):
        kinds = {2: "i", 3: "q"}
        assert base == 0
        start = at(offsets, (rows + 1,), (1,), kinds[ot])
        place = at(indices, (nnz,), (1,), kinds[it])
        value = at(values, (nnz,), (1,), DTYPES[vt])
        whole = numpy.zeros((rows, cols), DTYPES[vt])
        for row in range(rows):
            for k in range(start[row], start[row + 1]):
                whole[row, place[k]] += value[k]
        return self._keep(whole)

    def create_dn_vec(self, size, values, kind):
        return self._keep(at(values, (size,), (1,), DTYPES[kind]))

    def create_dn_mat(self, rows, cols, leading, values, kind, order):
        assert order == 2
        return self._keep(at(values, (rows, cols), (leading, 1), DTYPES[kind]))

    def sp_mv_buffer_size(self, handle, operation, one, a, x, zero, y, kind, algorithm):
        return 128

    def sp_mv(self, handle, operation, one, a, x, zero, y, kind, algorithm, space):
        assert operation == 0
        assert space
        self.algorithms.append(algorithm)
        self.made[y][...] = self.made[a] @ self.made[x]

    def sp_mm_buffer_size(self, handle, opa, opb, one, a, x, zero, y, kind, algorithm):
        return 0

    def sp_mm(self, handle, opa, opb, one, a, x, zero, y, kind, algorithm, space):
        assert (opa, opb) == (0, 0)
        self.algorithms.append(algorithm)
        self.made[y][...] = self.made[a] @ self.made[x]

    def destroy_sp_mat(self, one):
        del self.made[one]

    destroy_dn_vec = destroy_dn_mat = destroy_sp_mat


class Solver:
    """cuSOLVER, as far as it is asked here."""

    def __getattr__(self, name):
        dtype = {"s": "f", "d": "d", "c": "F", "z": "D"}[name[0]]
        if name.endswith("buffer_size"):
            return lambda *_: 64

        def potrf(handle, uplo, n, a, lda, space, size, info):
            assert size == 64
            matrix = columns(a, n, n, lda, dtype)
            half = (numpy.triu if uplo else numpy.tril)(matrix)
            off = half - numpy.diag(numpy.diag(half))
            factor = numpy.linalg.cholesky(half + off.conj().T)
            found = factor.conj().T if uplo else factor
            kept = numpy.tril(matrix, -1) if uplo else numpy.triu(matrix, 1)
            matrix[...] = found + kept  # The other triangle stays as it was.
            at(info, (1,), (1,), "i")[0] = 0

        return potrf
