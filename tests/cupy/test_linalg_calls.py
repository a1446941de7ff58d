"""What linear algebra asks of the libraries, on stand-ins that do it in NumPy.

Arrays here are CuPy's in form, on memory of the host.
"""

from __future__ import annotations

import types
from contextlib import contextmanager

import cupy
import numpy
import pytest

from tensorplay_cupy import linalg
from tensorplay_cupy.linalg import libraries, matrices, products, solves, sparse

from .host_libraries import Blas, Solver, Sparse, at, on_device, on_host


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
