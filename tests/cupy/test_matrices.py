"""How arrays are told to the libraries: by pointer, leading dimension, batch step; or refused."""

from __future__ import annotations

import numpy
import pytest

from tensorplay_core.errors import ArgumentError, ArgumentTypeError, DriverUnavailable
from tensorplay_cupy import linalg
from tensorplay_cupy.linalg import libraries
from tensorplay_cupy.linalg.matrices import Matrix, batches

CASES = {
    "row-major": ((3, 5), None, (5, False, 0)),
    "column-major": ((3, 5), (4, 12), (3, True, 0)),
    "rows apart": ((3, 5), (80, 4), (20, False, 0)),
    "columns apart": ((3, 5), (4, 40), (10, True, 0)),
    "one row": ((1, 5), (4, 4), (5, False, 0)),
    "one column": ((3, 1), (8, 4), (2, False, 0)),
    "one element": ((1, 1), (4, 4), (1, False, 0)),
    "batch": ((7, 3, 5), None, (5, False, 15)),
    "batches in steady steps": ((2, 7, 3, 5), None, (5, False, 15)),
    "batch of one": ((1, 3, 5), None, (5, False, 0)),
    "batch of the same": ((7, 3, 5), (0, 20, 4), (5, False, 0)),
    "batch of columns": ((7, 3, 5), (60, 4, 12), (3, True, 15)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_lies_well_is_taken_as_it_lies(fake, case):
    shape, strides, expected = CASES[case]
    array = fake(shape, strides=strides)
    found = Matrix.of(array, shape[:-2])
    assert found.pointer == int(array.data.ptr)
    assert (found.rows, found.columns) == shape[-2:]
    assert (found.leading, found.transposed, found.step) == expected


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3, 5), (40, 8)),
        ((3, 5), (4, 4)),
        ((3, 5), (20, -4)),
        ((2, 7, 3, 5), (60, 840, 20, 4)),
        ((7, 3, 5), (-60, 20, 4)),
    ],
    ids=["gaps", "overlapping", "backwards", "unsteady steps", "batch backwards"],
)
def test_what_does_not_is_not(fake, shape, strides):
    assert Matrix._as_it_lies(fake(shape, strides=strides)) is None


def test_batches_broadcast():
    shapes = [((2, 1, 3, 4), (5, 4, 6)), ((3, 4), (4, 5)), ((1, 3, 4), (7, 4, 5))]
    for one, two in shapes:
        arrays = [numpy.ones(shape) for shape in (one, two)]
        assert batches(*arrays) == numpy.matmul(*arrays).shape[:-2]
    with pytest.raises(ArgumentError):
        batches(numpy.empty((2, 3, 4)), numpy.empty((3, 4, 5)))


def test_arguments_are_cupy_arrays(fake):
    good, host = fake((4, 4)), numpy.zeros((4, 4), "f")
    for call in (
        lambda: linalg.matmul(good, host),
        lambda: linalg.matmul(host, good),
        lambda: linalg.matmul(good, good, out=host),
        lambda: linalg.dot(good, [1.0]),
        lambda: linalg.gemv(host, good),
        lambda: linalg.solve_triangular(host, good),
        lambda: linalg.cholesky(host),
        lambda: linalg.sparse_matmul(good, good),
    ):
        with pytest.raises(ArgumentTypeError) as caught:
            call()
        for part in (caught.value.doing, caught.value.subject, caught.value.met):
            assert part


def test_dtypes_that_the_library_lacks_are_refused_by_name(fake):
    for call, name in (
        (lambda: linalg.matmul(fake((4, 4), "i"), fake((4, 4), "i")), "int32"),
        (lambda: linalg.dot(fake((4,), "?"), fake((4,), "?")), "bool"),
        (lambda: linalg.solve_triangular(fake((4, 4), "e"), fake((4,), "e")), "float16"),
        (lambda: linalg.cholesky(fake((4, 4), "q")), "int64"),
    ):
        with pytest.raises(ArgumentTypeError) as caught:
            call()
        assert name in caught.value.met


def test_shapes_that_do_not_fit_are_refused_with_both(fake):
    for call, one, two in (
        (lambda: linalg.matmul(fake((2, 3)), fake((4, 5))), "3", "4"),
        (lambda: linalg.matmul(fake((3,)), fake((4, 5))), "3", "4"),
        (lambda: linalg.dot(fake((3,)), fake((4,))), "3", "4"),
        (lambda: linalg.gemv(fake((2, 3)), fake((2, 1))), "2", "2"),
        (lambda: linalg.solve_triangular(fake((2, 3)), fake((2,))), "(2, 3)", "(2,)"),
        (lambda: linalg.solve_triangular(fake((3, 3)), fake((2,))), "3", "2"),
        (lambda: linalg.cholesky(fake((2, 3))), "(2, 3)", "(2, 3)"),
    ):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert one in str(caught.value)
        assert two in str(caught.value)


def test_a_place_for_the_result_must_fit(fake):
    a, b = fake((2, 3)), fake((3, 4))
    for out in (fake((4, 2)), fake((2, 4), "d"), fake((2, 4), strides=(4, 8))):
        with pytest.raises(ArgumentError) as caught:
            linalg.matmul(a, b, out=out)
        assert "(2, 4)" in caught.value.remedy


def test_an_unknown_operation_is_refused(fake):
    with pytest.raises(ArgumentError):
        linalg.solve_triangular(fake((3, 3)), fake((3,)), trans="H")


def test_a_missing_binding_is_said_with_what_installs_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(libraries, "import_module", missing)
    with pytest.raises(DriverUnavailable) as caught:
        libraries.library("cublas")
    assert "tensorplay-cupy[linalg]" in caught.value.remedy
    assert "nvmath" in caught.value.met
