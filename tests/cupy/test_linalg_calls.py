"""What linear algebra asks of the libraries, on stand-ins that do it in NumPy.

Arrays here are CuPy's in form, on memory of the host. The stand-ins take pointers and leading
dimensions in the libraries' column-major order, so a call that mixes them up gives other numbers.
"""

from __future__ import annotations

import ctypes
import types
from contextlib import contextmanager

import cupy
import numpy
import pytest

from tensorplay_cupy import linalg
from tensorplay_cupy.linalg import libraries, matrices, products, solves, sparse

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


@pytest.fixture
def stand_ins(monkeypatch):
    """The libraries, and CuPy's functions for arrays on the host."""
    found = {"cublas": Blas(), "cusparse": Sparse(), "cusolverDn": Solver()}

    @contextmanager
    def using(name):
        yield found[name], 1

    def empty(shape, dtype="d"):
        return on_device(numpy.full(shape, 7, dtype=dtype))

    def copyto(target, source, casting="same_kind"):
        numpy.copyto(on_host(target), on_host(source), casting=casting)

    host = types.SimpleNamespace(
        ndarray=cupy.ndarray,
        empty=empty,
        copyto=copyto,
        zeros=lambda shape, dtype: on_device(numpy.zeros(shape, dtype)),
        array=lambda a, dtype, order, copy: on_device(numpy.array(on_host(a), dtype)),
        ascontiguousarray=lambda a: on_device(numpy.array(on_host(a), order="C")),
        broadcast_to=lambda a, shape: on_device(numpy.broadcast_to(on_host(a), shape).copy()),
        tril=lambda a: on_device(numpy.tril(on_host(a))),
        equal=lambda a, b: on_device(numpy.array(on_host(a) == b)),
        where=lambda condition, a, b: on_device(numpy.where(on_host(condition), on_host(a), b)),
        cuda=types.SimpleNamespace(Device=lambda: types.SimpleNamespace(compute_capability="90")),
    )
    monkeypatch.setattr(libraries, "using", using)
    for module in (matrices, products, solves, sparse):
        monkeypatch.setattr(module, "cupy", host)
    return found


def drawn(shape, dtype, seed=0):
    rng = numpy.random.default_rng(seed)
    made = rng.standard_normal(shape)
    if numpy.dtype(dtype).kind == "c":
        made = made + 1j * rng.standard_normal(shape)
    return made.astype(dtype)


@pytest.mark.parametrize("dtype", "efdFD")
@pytest.mark.parametrize(
    ("one", "two", "calls"),
    [
        ((4, 3), (3, 5), "gemm_ex"),
        ((1, 3), (3, 1), "gemm_ex"),
        ((3,), (3, 5), "gemm_ex"),
        ((4, 3), (3,), "gemm_ex"),
        ((3,), (3,), "gemm_ex"),
        ((6, 4, 3), (6, 3, 5), "gemm_strided_batched_ex"),
        ((6, 4, 3), (3, 5), "gemm_strided_batched_ex"),
        ((4, 3), (6, 3, 5), "gemm_strided_batched_ex"),
        ((2, 1, 4, 3), (3, 3, 5), "gemm_strided_batched_ex"),
        ((1, 1, 4, 3), (1, 3, 5), "gemm_ex"),
    ],
)
def test_matmul_asks_for_the_product(stand_ins, dtype, one, two, calls):
    a, b = drawn(one, dtype), drawn(two, dtype, 1)
    found = linalg.matmul(on_device(a), on_device(b))
    expected = numpy.matmul(a, b)
    assert found.shape == expected.shape
    numpy.testing.assert_allclose(on_host(found), expected, rtol=2e-2 if dtype == "e" else 1e-5)
    assert stand_ins["cublas"].called == [calls]
    assert stand_ins["cublas"].space == 32 << 20


@pytest.mark.parametrize("case", ["left", "right", "both", "sliced", "batched", "gaps"])
def test_matmul_takes_matrices_as_they_lie(stand_ins, case):
    a, b = drawn((4, 3), "d"), drawn((3, 5), "d", 1)
    a = numpy.asfortranarray(a) if case in ("left", "both") else a
    b = numpy.asfortranarray(b) if case in ("right", "both") else b
    if case == "sliced":
        a, b = drawn((8, 9), "d")[::2, :3], drawn((5, 7), "d", 1).T[:3]
    if case == "batched":
        a, b = drawn((6, 3, 4), "d").swapaxes(1, 2), drawn((6, 5, 3), "d", 1).swapaxes(1, 2)
    if case == "gaps":
        a, b = drawn((8, 9), "d")[::2, ::3], drawn((3, 10), "d", 1)[:, ::2]
    found = linalg.matmul(on_device(a), on_device(b))
    numpy.testing.assert_allclose(on_host(found), a @ b, rtol=1e-12)


def test_gemv_turns_the_matrix(stand_ins):
    a, x, y = drawn((4, 3), "d"), drawn((3,), "d", 1), drawn((4,), "d", 2)
    numpy.testing.assert_allclose(on_host(linalg.gemv(on_device(a), on_device(x))), a @ x)
    found = linalg.gemv(on_device(a), on_device(y), trans=True)
    numpy.testing.assert_allclose(on_host(found), a.T @ y)


@pytest.mark.parametrize("dtype", "efdFD")
def test_dot_leaves_the_result_on_the_device(stand_ins, dtype):
    a, b = drawn((100,), dtype), drawn((100,), dtype, 1)
    found = linalg.dot(on_device(a), on_device(b))
    assert found.shape == ()
    expected = (a.astype("D") * b).sum()
    numpy.testing.assert_allclose(on_host(found), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("columns", [None, 4])
@pytest.mark.parametrize("index", "iq")
def test_sparse_products_have_one_order(stand_ins, dtype, columns, index):
    dense = drawn((6, 5), dtype)
    dense[numpy.abs(dense) < 0.7] = 0
    kept = dense != 0
    matrix = types.SimpleNamespace(
        format="csr",
        shape=dense.shape,
        data=on_device(dense[kept]),
        indices=on_device(numpy.nonzero(kept)[1].astype(index)),
        indptr=on_device(numpy.concatenate([[0], kept.sum(1).cumsum()]).astype(index)),
    )
    x = drawn((5,) if columns is None else (5, columns), dtype, 1)
    found = linalg.sparse_matmul(matrix, on_device(x))
    numpy.testing.assert_allclose(on_host(found), dense @ x, rtol=1e-4, atol=1e-5)
    # CUSPARSE_SPMV_CSR_ALG2 and CUSPARSE_SPMM_CSR_ALG3, the deterministic ones.
    assert stand_ins["cusparse"].algorithms == [3 if columns is None else 12]
    assert not stand_ins["cusparse"].made


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("trans", "NTC")
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("columns", [None, 3])
def test_triangular_systems_are_solved(stand_ins, dtype, trans, lower, unit, columns):
    a = drawn((5, 5), dtype) * 0.2 + 3 * numpy.eye(5, dtype=dtype)
    b = drawn((5,) if columns is None else (5, columns), dtype, 1)
    found = linalg.solve_triangular(
        on_device(a), on_device(b), lower=lower, trans=trans, unit_diagonal=unit
    )
    triangle = (numpy.tril if lower else numpy.triu)(a)
    if unit:
        numpy.fill_diagonal(triangle, 1)
    operator = {"N": triangle, "T": triangle.T, "C": triangle.conj().T}[trans]
    numpy.testing.assert_allclose(operator @ on_host(found), b, rtol=1e-4, atol=1e-5)


def test_a_factor_of_nothing_positive_is_nan(stand_ins, monkeypatch):
    def refuse(handle, uplo, n, a, lda, space, size, info):
        at(info, (1,), (1,), "i")[0] = 3

    solver = types.SimpleNamespace(dpotrf=refuse, dpotrf_buffer_size=lambda *_: 64)
    monkeypatch.setitem(stand_ins, "cusolverDn", solver)
    info = on_device(numpy.zeros(1, "i"))
    factor = linalg.cholesky(on_device(numpy.eye(4)), info=info)
    assert numpy.isnan(on_host(factor)).all()
    assert on_host(info)[0] == 3


@pytest.mark.parametrize("dtype", "fdFD")
def test_cholesky_reads_the_lower_triangle_and_gives_the_lower_factor(stand_ins, dtype):
    root = drawn((5, 5), dtype)
    a = root @ root.conj().T + 5 * numpy.eye(5, dtype=dtype)
    junk = numpy.tril(a) + numpy.triu(numpy.full((5, 5), 99, dtype), 1)
    factor = linalg.cholesky(on_device(junk))
    numpy.testing.assert_allclose(on_host(factor), numpy.linalg.cholesky(a), rtol=1e-4, atol=1e-5)
    b = drawn((5, 2), dtype, 1)
    found = linalg.cho_solve(factor, on_device(b))
    numpy.testing.assert_allclose(a @ on_host(found), b, rtol=1e-3, atol=1e-4)
