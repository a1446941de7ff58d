"""Buffers of the host: over any memory Python can view, converted as C does, never broadcast."""

import array
import ctypes
import math
from typing import Any

import numpy
import pytest

from tensorplay_core.errors import ArgumentError, ArgumentTypeError, PoolExhausted


def test_values_lengths_and_memory_make_buffers(host: Any) -> None:
    driver = host.driver
    values = driver.buffer([1.5, 2.5])
    assert (values.dtype, values.shape, values.strides) == ("float32", (2,), (4,))
    assert (values.device, values.nbytes, len(values)) == ("host", 8, 2)
    assert values.tolist() == list(values) == [1.5, 2.5]
    assert driver.buffer(range(3), "q").tolist() == [0, 1, 2]
    flags = driver.buffer([True, False], "?")
    assert (flags.dtype, flags.tolist()) == ("bool", [True, False])
    assert all(map(math.isnan, driver.buffer(3, "d").tolist()))


@pytest.mark.parametrize(
    "memory",
    [
        array.array("i", [1, 2, 3]),
        bytearray(b"\1\2\3"),
        (ctypes.c_int16 * 3)(1, 2, 3),
        numpy.array([1, 2, 3], dtype=numpy.uint64),
        numpy.array([1, 2, 3], dtype=numpy.float64),
    ],
)
def test_memory_is_wrapped_not_copied(host: Any, memory: Any) -> None:
    buffer = host.driver.buffer(memory)
    assert buffer.tolist() == [1, 2, 3]
    memory[1] = 9
    assert buffer.tolist() == [1, 9, 3]
    host.driver.memset(buffer, 4)
    assert list(memory) == [4, 4, 4]


def test_types_and_shapes_of_numpy_arrays_are_understood(host: Any) -> None:
    for dtype in ("bool", "int8", "uint16", "int32", "uint64", "float32", "float64"):
        wrapped = host.driver.buffer(numpy.zeros((2, 3), dtype=dtype))
        assert wrapped.dtype == dtype
        assert wrapped.shape == (2, 3)
        assert wrapped.tolist() == [[0, 0, 0]] * 2
    scalar = host.driver.buffer(numpy.array(True))
    assert scalar.shape == ()
    assert bool(scalar) is True


def test_bytes_take_any_type(host: Any) -> None:
    memory = bytearray(8)
    buffer = host.driver.buffer(memory, "f")
    buffer[1] = 1.0
    assert memory == b"\0\0\0\0\0\0\x80\x3f"
    with pytest.raises(ArgumentError, match="whole number"):
        host.driver.buffer(bytearray(7), "f")
    with pytest.raises(ArgumentError, match="float64"):
        host.driver.buffer(array.array("d", [1.0]), "f")


@pytest.mark.parametrize(
    ("data", "typecode", "error"),
    [
        (0, "f", ArgumentError),
        (-1, "f", ArgumentError),
        ([], "f", ArgumentError),
        ([1.0], "x", ArgumentTypeError),
        ([1.5], "i", ArgumentTypeError),
        (["1"], "f", ArgumentTypeError),
        ([300], "B", ArgumentTypeError),
        (None, None, ArgumentTypeError),
        (object(), None, ArgumentTypeError),
        (numpy.zeros((2, 2), dtype="complex64"), None, ArgumentTypeError),
        (numpy.zeros((4, 4), dtype="float32")[:, :2], None, ArgumentError),
        (numpy.zeros(0), None, ArgumentError),
    ],
)
def test_what_makes_no_buffer_is_refused(
    host: Any, data: Any, typecode: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        host.driver.buffer(data, typecode)
    assert type(caught.value) is error
    assert host.driver.held_bytes == 0


def test_slices_are_buffers_over_the_same_memory(host: Any) -> None:
    buffer = host.driver.buffer([1.0, 2.0, 3.0, 4.0])
    half = buffer[1:3]
    half[0] = 9.0
    assert buffer.tolist() == [1.0, 9.0, 3.0, 4.0]
    assert host.runtime.array_overlap(buffer, half)
    assert not host.runtime.array_overlap(buffer[:1], half)
    with pytest.raises(ArgumentError, match="strides"):
        buffer[::2]


def test_overlap_is_exact_across_kinds_of_memory(host: Any) -> None:
    overlap = host.runtime.array_overlap
    base = numpy.zeros(8, dtype="float32")
    wrapped = host.driver.buffer(base[2:4])
    assert overlap(wrapped, base)
    assert overlap(base[3:5], wrapped)
    assert not overlap(wrapped, base[4:])
    assert not overlap(wrapped, bytes(8))
    assert not overlap(host.driver.buffer(2), host.driver.buffer(2))
    frozen = base[:4]
    frozen.flags.writeable = False
    assert overlap(frozen, wrapped)


def test_truth_is_of_one_element(host: Any) -> None:
    assert not host.driver.buffer([False], "?")
    assert host.driver.buffer([2], "i")
    with pytest.raises(ArgumentError, match="more than one"):
        bool(host.driver.buffer([1, 2], "i"))


@pytest.mark.parametrize(
    ("source", "into", "expected"),
    [
        ([1.9, -1.9], "i", [1, -1]),
        ([300, -1], "B", [44, 255]),
        ([200, -200], "b", [-56, 56]),
        ([0.0, 0.5], "?", [False, True]),
        ([1e300, 2.0], "f", [math.inf, 2.0]),
        ([True, False], "d", [1.0, 0.0]),
    ],
)
def test_copies_convert_as_c_does(
    host: Any, source: list[Any], into: str, expected: list[Any]
) -> None:
    kind = {bool: "?", int: "i", float: "d"}[type(source[0])]
    given, target = host.driver.buffer(source, kind), host.driver.buffer(2, into)
    host.runtime.array_copy(target, given)
    assert target.tolist() == expected


def test_copies_never_broadcast_and_never_write_what_is_read_only(host: Any) -> None:
    two, one = host.driver.buffer([1.0, 2.0]), host.driver.buffer([3.0])
    with pytest.raises(ArgumentError, match="broadcast"):
        host.driver.copy(two, one)
    with pytest.raises(ArgumentError, match="broadcast"):
        host.driver.copy(host.driver.buffer(numpy.zeros((2, 1), dtype="float32")), two)
    with pytest.raises(ArgumentError, match="read-only"):
        host.driver.copy(bytes(1), bytearray(1))
    with pytest.raises(ArgumentTypeError):
        host.driver.copy(two, [1.0, 2.0])
    assert two.tolist() == [1.0, 2.0]


def test_copies_of_overlapping_memory_are_right(host: Any) -> None:
    buffer = host.driver.buffer([1.0, 2.0, 3.0])
    host.driver.copy(buffer[1:], buffer[:2])
    assert buffer.tolist() == [1.0, 1.0, 2.0]
    doubles = host.driver.buffer(bytearray(16), "d")
    floats = host.driver.buffer(doubles.memory.cast("B"), "f")[2:]
    floats[0], floats[1] = 1.0, 2.0
    host.driver.copy(doubles, floats)
    assert doubles.tolist() == [1.0, 2.0]


def test_memset_converts_once_and_refuses_what_is_no_number(host: Any) -> None:
    buffer = host.driver.buffer(2, "i")
    host.driver.memset(buffer, 7.9)
    assert buffer.tolist() == [7, 7]
    with pytest.raises(ArgumentTypeError, match="'x'"):
        host.driver.memset(buffer, "x")


def test_array_like_is_of_the_same_type_and_shape(host: Any) -> None:
    like = host.runtime.array_like(numpy.zeros((2, 3), dtype="int64"))
    assert (like.dtype, like.shape) == ("int64", (2, 3))


def test_held_bytes_follow_buffers_and_the_limit_holds(host: Any) -> None:
    driver = host.driver
    wrapped = driver.buffer(bytearray(100))
    assert (wrapped.nbytes, driver.held_bytes) == (100, 0)
    buffer = driver.buffer(16)
    part = buffer[:1]
    del buffer
    assert driver.held_bytes == 64
    del part
    assert driver.held_bytes == 0
    driver.limit_bytes = 64
    kept = driver.buffer(16)
    with pytest.raises(PoolExhausted, match="64 of 64"):
        driver.buffer(1)
    assert driver.held_bytes == kept.nbytes
    with pytest.raises(MemoryError), host.capture():
        driver.buffer(1)
    driver.limit_bytes = None
    assert driver.buffer(1).nbytes == 4
