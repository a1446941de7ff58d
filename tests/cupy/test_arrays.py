"""CuPy arrays as the driver handles them, as far as that asks nothing of a GPU."""

from __future__ import annotations

import numpy
import pytest

from tensorplay_core.errors import ArgumentTypeError, SignatureMismatch
from tensorplay_cupy import arrays


def test_the_check_says_yes_to_the_same_form(fake):
    check = arrays.check_of([fake((2, 3)), fake((4,), "i")])
    assert check([fake((2, 3)), fake((4,), "i")])
    assert check((fake((2, 3)), fake((4,), "i")))


@pytest.mark.parametrize("wrong", ["count", "shape", "dtype", "strides", "kind", "host"])
def test_the_check_never_says_yes_to_another(fake, wrong):
    check = arrays.check_of([fake((2, 3))])
    inputs = {
        "count": [fake((2, 3)), fake((2, 3))],
        "shape": [fake((3, 2))],
        "dtype": [fake((2, 3), "i")],
        "strides": [fake((2, 3), strides=(4, 8))],
        "kind": [3.0],
        "host": [numpy.zeros((2, 3), "f")],
    }[wrong]
    assert not check(inputs)


def test_a_reference_speaks_of_the_array_without_reading_it(fake):
    array = fake((2, 3), "?")
    told = arrays.reference(array)
    assert repr(told) == f"<cupy array of shape (2, 3), bool, at {int(array.data.ptr):#x}>"
    interface = told.__cuda_array_interface__
    assert interface["data"] == (int(array.data.ptr), False)
    assert interface["typestr"] == "|b1"
    assert interface["strides"] is None
    assert told.device == 0
    turned = fake((2, 3), strides=(4, 8))
    assert arrays.reference(turned).__cuda_array_interface__["strides"] == (4, 8)


@pytest.mark.parametrize("value", [True, 1, None, "p", numpy.zeros(1, "?")], ids=repr)
def test_what_is_no_cupy_array_is_no_reference(value):
    assert arrays.reference(value) is value


def test_overlap_is_of_addresses(fake):
    base = fake((16,))
    assert arrays.overlap(base, base)
    assert arrays.overlap(base[:8], base[7:])
    assert not arrays.overlap(base[:8], base[8:])
    assert arrays.overlap(base[::-1], base[:1])
    assert not arrays.overlap(base, fake((16,)))
    assert not arrays.overlap(base[:0], base)


def test_host_arrays_share_no_memory_with_others(fake):
    host = numpy.zeros(16, "f")
    assert not arrays.overlap(host, fake((16,)))
    assert not arrays.overlap(fake((16,)), host)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1,), ()])
def test_a_copy_never_broadcasts(fake, shape):
    with pytest.raises(SignatureMismatch) as caught:
        arrays.copy_into(fake((2,)), fake(shape))
    assert str(shape) in caught.value.differences[0]
    with pytest.raises(SignatureMismatch):
        arrays.copy_into(fake((2,)), 1.0)


def test_a_copy_goes_into_arrays_on_a_gpu(fake):
    with pytest.raises(ArgumentTypeError) as caught:
        arrays.copy_into(numpy.zeros(2, "f"), fake((2,)))
    assert "ndarray" in caught.value.subject
