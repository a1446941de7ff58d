"""Linear algebra in graphs on a GPU: the same bytes eagerly and replayed, and NumPy's numbers."""

from __future__ import annotations

import cupy as cp
import numpy
import pytest

import tensorplay_cupy as tp
from tensorplay_cupy import linalg

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def bindings():
    pytest.importorskip("nvmath")


TOLERANCE = {"e": 2e-2, "f": 2e-4, "d": 1e-10, "F": 2e-4, "D": 1e-10}


def random(shape, dtype, seed=0):
    rng = numpy.random.default_rng(seed)
    made = rng.standard_normal(shape)
    if numpy.dtype(dtype).kind == "c":
        made = made + 1j * rng.standard_normal(shape)
    return cp.asarray(made.astype(dtype))


def both_ways(function, *arrays):
    """What the function gives eagerly, once a replay after fresh inputs gave the same bytes."""
    function(*arrays)
    with tp.graph(tp.CUDAGraph(), allow_empty=True) as g:
        captured = function(*arrays)
    first = [array.copy() for array in arrays]
    for array in arrays:
        array *= array.dtype.type(1.5)
    g.replay()
    replayed = captured.get()
    numpy.testing.assert_array_equal(replayed, function(*arrays).get())
    for array, value in zip(arrays, first, strict=True):
        array[...] = value
    g.replay()
    return captured.get()


@pytest.mark.parametrize("dtype", "efdFD")
@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((64, 48), (48, 80)),
        ((1, 7), (7, 1)),
        ((48,), (48, 80)),
        ((64, 48), (48,)),
        ((48,), (48,)),
        ((5, 64, 48), (5, 48, 8)),
        ((5, 64, 48), (48, 8)),
        ((2, 1, 16, 8), (3, 8, 4)),
        ((16, 0), (0, 4)),
        ((0, 3), (3, 4)),
    ],
)
def test_matmul(dtype, one, two):
    a, b = random(one, dtype), random(two, dtype, 1)
    found = both_ways(linalg.matmul, a, b)
    expected = numpy.matmul(a.get(), b.get())
    assert found.shape == expected.shape
    numpy.testing.assert_allclose(
        found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 10
    )


@pytest.mark.parametrize("turned", [(False, True), (True, False), (True, True)])
def test_matmul_of_transposed_and_sliced_matrices(turned):
    a, b = random((48, 64), "d"), random((64, 32), "d", 1)
    a = random((64, 48), "d").T if turned[0] else a
    b = random((32, 64), "d", 1).T if turned[1] else b
    numpy.testing.assert_allclose(both_ways(linalg.matmul, a, b), a.get() @ b.get(), rtol=1e-10)
    c, d = random((96, 64), "d")[::2, :], random((64, 64), "d", 2)[:, 3:40:3]
    numpy.testing.assert_allclose(both_ways(linalg.matmul, c, d), c.get() @ d.get(), rtol=1e-10)


def test_matmul_into_an_array_even_one_of_its_operands():
    a, b = random((32, 32), "f"), random((32, 32), "f", 1)
    expected = linalg.matmul(a, b)
    out = cp.empty_like(a)
    assert linalg.matmul(a, b, out=out) is out
    cp.testing.assert_array_equal(out, expected)
    linalg.matmul(a, b, out=a)
    cp.testing.assert_array_equal(a, expected)


@pytest.mark.parametrize("dtype", "efdFD")
def test_dot(dtype):
    a, b = random((1000,), dtype), random((1000,), dtype, 1)
    found = both_ways(linalg.dot, a, b)
    assert found.shape == ()
    numpy.testing.assert_allclose(
        found, a.get().astype("D") @ b.get().astype("D"), rtol=0.05, atol=TOLERANCE[dtype] * 1e3
    )


def test_gemv():
    a, x = random((64, 48), "d"), random((48,), "d", 1)
    numpy.testing.assert_allclose(both_ways(linalg.gemv, a, x), a.get() @ x.get(), rtol=1e-10)
    y = random((64,), "d", 2)
    found = both_ways(lambda a, y: linalg.gemv(a, y, trans=True), a, y)
    numpy.testing.assert_allclose(found, a.get().T @ y.get(), rtol=1e-10)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("columns", [None, 1, 5])
def test_sparse_matmul(dtype, columns):
    import cupyx.scipy.sparse as sparse

    dense = random((200, 150), dtype)
    dense[cp.abs(dense) < 1] = 0
    matrix = sparse.csr_matrix(dense)
    x = random((150,) if columns is None else (150, columns), dtype, 1)
    found = both_ways(lambda x: linalg.sparse_matmul(matrix, x), x)
    expected = dense.get() @ x.get()
    numpy.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_a_graph_owns_its_sparse_matrix():
    import gc

    import cupyx.scipy.sparse as sparse

    dense = random((200, 200), "d")
    matrix, x = sparse.csr_matrix(dense), random((200,), "d", 1)
    linalg.sparse_matmul(matrix, x)
    with tp.graph(tp.CUDAGraph()) as g:
        y = linalg.sparse_matmul(matrix, x)
    expected = linalg.sparse_matmul(matrix, x).get()
    del matrix
    gc.collect()
    junk = [cp.full(1 << 15, -7.0) for _ in range(32)]
    g.replay()
    numpy.testing.assert_array_equal(y.get(), expected)
    assert junk


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("trans", "NTC")
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("columns", [None, 3])
def test_solve_triangular(dtype, trans, lower, columns):
    a = random((40, 40), dtype) + 40 * cp.eye(40, dtype=dtype)
    b = random((40,) if columns is None else (40, columns), dtype, 1)
    found = both_ways(lambda b: linalg.solve_triangular(a, b, lower=lower, trans=trans), b)
    triangle = (numpy.tril if lower else numpy.triu)(a.get())
    operator = {"N": triangle, "T": triangle.T, "C": triangle.conj().T}[trans]
    numpy.testing.assert_allclose(
        operator @ found, b.get(), rtol=TOLERANCE[dtype] * 10, atol=TOLERANCE[dtype] * 10
    )


@pytest.mark.parametrize("dtype", "fdFD")
def test_cholesky_and_its_solve(dtype):
    root = random((60, 60), dtype)
    a = cp.asarray(root.get() @ root.get().conj().T + 60 * numpy.eye(60, dtype=dtype))
    b = random((60, 2), dtype, 1)
    factor = both_ways(linalg.cholesky, a)
    numpy.testing.assert_allclose(
        factor, numpy.linalg.cholesky(a.get()), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    found = both_ways(lambda b: linalg.cho_solve(linalg.cholesky(a), b), b)
    numpy.testing.assert_allclose(
        a.get() @ found, b.get(), rtol=TOLERANCE[dtype] * 50, atol=TOLERANCE[dtype] * 50
    )


def test_a_matrix_that_is_not_positive_definite_gives_nan_and_says_where():
    a, info = cp.eye(8), cp.zeros(1, dtype="i")
    a[4, 4] = -1
    assert cp.isnan(linalg.cholesky(a, info=info)).all()
    assert int(info[0]) == 5
    with tp.graph(tp.CUDAGraph()) as g:
        factor = linalg.cholesky(a, info=info)
    a[4, 4] = 4
    g.replay()
    assert int(info[0]) == 0
    assert float(factor[4, 4]) == 2


def test_products_of_a_forked_stream_and_of_a_body_have_their_own_work_space():
    a, b = random((256, 256), "f"), random((256, 256), "f", 1)
    flag, side = cp.ones(1, dtype="?"), cp.cuda.Stream(non_blocking=True)
    one, two, three = (linalg.matmul(*pair) for pair in ((a, b), (b, a), (a, a)))
    cp.logical_not(flag, out=flag)
    flag.fill(True)
    made = [cp.empty_like(a) for _ in range(3)]
    with tp.graph(tp.CUDAGraph()) as g:
        main = cp.cuda.get_current_stream()
        side.wait_event(main.record())
        with side:
            linalg.matmul(a, b, out=made[0])
        linalg.matmul(b, a, out=made[1])
        with g.if_then(flag):
            linalg.matmul(a, a, out=made[2])
        main.wait_event(side.record())
    for _ in range(20):
        for array in made:
            array.fill(0)
        g.replay()
        for array, expected in zip(made, (one, two, three), strict=True):
            cp.testing.assert_array_equal(array, expected)


def test_a_capture_that_another_library_began_is_refused():
    a = random((8, 8), "f")
    linalg.matmul(a, a)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(tp.OperationRefused, match="another library"):
                linalg.matmul(a, a)
        finally:
            stream.end_capture()
