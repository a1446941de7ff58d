"""What the CUDA driver takes for streams, devices and the arguments of kernels."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_core.drivers.cuda import contexts
from tensorplay_core.drivers.cuda.contexts import CudaDevice
from tensorplay_core.drivers.cuda.modules import Arguments, extents
from tensorplay_core.drivers.cuda.separation import Separation
from tensorplay_core.drivers.cuda.streams import handle_of
from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    TensorplayError,
)

from .device_arrays import own, stable


def test_inputs_that_lie_apart_are_known_after_one_look() -> None:
    separation = Separation([(1000, 100), (2000, 50)])
    assert not separation.known_apart((5000, 1100))
    assert separation.clashes((5000, 1100)) == []
    assert separation.known_apart((5000, 1100))


@pytest.mark.parametrize(
    ("addresses", "clashing"),
    [
        ((1000, 2000), []),  # each its own
        ((2000, 1000), [0, 1]),  # swapped
        ((1000, 1000), [1]),
        ((1001, 2000), [0]),  # partly its own
        ((950, 2000), [0]),
        ((1100, 2050), []),  # just behind
        ((900, 1950), []),  # just before
        ((901, 1951), [0, 1]),
        ((5000, 1050), [1]),
    ],
)
def test_inputs_that_another_copy_would_overwrite_are_found(
    addresses: tuple[int, int], clashing: list[int]
) -> None:
    separation = Separation([(1000, 100), (2000, 50)])
    for _ in range(2):  # What is remembered changes nothing.
        assert separation.clashes(addresses) == clashing


def test_empty_buffers_clash_with_nothing() -> None:
    separation = Separation([(1000, 0), (1000, 8)])
    assert separation.clashes((1000, 1000)) == []
    assert Separation([]).known_apart(())


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    gaps=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    addresses=st.lists(st.integers(0, 40), min_size=5, max_size=5),
    again=st.lists(st.integers(0, 40), min_size=5, max_size=5),
)
def test_the_quick_answer_is_the_plain_one(
    sizes: list[int], gaps: list[int], addresses: list[int], again: list[int]
) -> None:
    buffers, at = [], 10
    for size, gap in zip(sizes, gaps, strict=False):
        at += gap
        buffers.append((at, size))
        at += size
    separation = Separation(buffers)
    for given_addresses in (addresses, again, addresses):
        chosen = given_addresses[: len(buffers)]
        expected = [
            place
            for place, (address, (start, size)) in enumerate(zip(chosen, buffers, strict=True))
            if address != start
            and size
            and any(
                address < other + length and other < address + size
                for other, length in buffers
                if length
            )
        ]
        found = [] if separation.known_apart(chosen) else separation.clashes(chosen)
        assert found == expected


class WithProtocol:
    def __init__(self, version: int, handle: int) -> None:
        self.told = version, handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.told


def wait() -> None:
    """A method of streams."""


@pytest.mark.parametrize(
    "stream",
    [
        7,
        WithProtocol(0, 7),
        SimpleNamespace(cuda_stream=7, synchronize=wait),
        SimpleNamespace(ptr=7, synchronize=wait),
        SimpleNamespace(__cuda_stream__=(0, 7)),
    ],
    ids=["int", "protocol", "torch", "cupy", "attribute"],
)
def test_streams_of_every_library_are_taken(stream: object) -> None:
    assert handle_of(stream) == 7


@pytest.mark.parametrize(
    "stream", [None, "7", 7.0, True, object(), SimpleNamespace(ptr=7)], ids=stable
)
def test_what_is_no_stream_is_refused(stream: object) -> None:
    with pytest.raises(ArgumentTypeError):
        handle_of(stream)


@pytest.mark.parametrize("stream", [-1, WithProtocol(1, 7), WithProtocol(0, -7)], ids=stable)
def test_a_stream_that_cannot_be_is_refused(stream: object) -> None:
    with pytest.raises(ArgumentError):
        handle_of(stream)


def test_a_device_is_a_number_that_says_what_it_is() -> None:
    device = CudaDevice(1)
    assert str(device) == repr(device) == f"{device}" == "cuda:1"
    assert device == 1
    assert hash(device) == hash(1)


@pytest.mark.parametrize(
    ("device", "named"),
    [
        (1, ("cuda", 1)),
        ("cuda", ("cuda", None)),
        ("cuda:1", ("cuda", 1)),
        ("cpu", ("cpu", None)),
        (SimpleNamespace(type="cuda", index=1), ("cuda", 1)),
        (SimpleNamespace(type="cpu", index=None), ("cpu", None)),
        (SimpleNamespace(id=1), ("cuda", 1)),
    ],
    ids=stable,
)
def test_devices_of_every_library_are_read(device: object, named: tuple[str, int | None]) -> None:
    assert contexts._named(device) == named


@pytest.mark.parametrize("device", [object(), 1.5, True, "cuda:x"], ids=stable)
def test_what_is_no_device_is_refused(device: object) -> None:
    with pytest.raises(ArgumentTypeError):
        contexts._named(device)


def function(*sizes: int) -> Any:
    end, parameters = 0, []
    for size in sizes:
        end = -(-end // size) * size
        parameters.append((end, size))
        end += size
    return SimpleNamespace(parameters=tuple(parameters))


def packed(arguments: Arguments) -> bytes:
    return arguments._values.raw


def test_arguments_are_packed_by_the_kernels_own_layout() -> None:
    arguments = Arguments(function(8, 4, 8, 4, 1), [own((1,)), 7, 2.5, -1, True])
    assert packed(arguments)[:29] == (
        (4096).to_bytes(8, "little")
        + (7).to_bytes(4, "little")
        + bytes(4)
        + b"\0\0\0\0\0\0\x04@"
        + b"\xff\xff\xff\xff"
        + b"\1"
    )


def test_arguments_may_be_floats_nulls_and_bytes() -> None:
    arguments = Arguments(function(4, 2, 8, 3), [1.0, 0.5, None, b"abc"])
    assert packed(arguments)[:4] == b"\0\0\x80?"
    assert packed(arguments)[4:6] == b"\x008"
    assert packed(arguments)[8:16] == bytes(8)


@pytest.mark.parametrize(
    "values",
    [(), (1, 2), (2**32,), (-(2**31) - 1,), (b"abc",), (own((1,)),), (object(),), ("x",)],
    ids=stable,
)
def test_arguments_that_do_not_fit_are_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(TensorplayError) as caught:
        Arguments(function(4), values)
    assert isinstance(caught.value, ArgumentError)


def test_kernels_without_parameters_take_none() -> None:
    assert Arguments(function(), ()).address


@pytest.mark.parametrize(
    ("given_extents", "expected"),
    [(3, (3, 1, 1)), ((3,), (3, 1, 1)), ((3, 2), (3, 2, 1)), ([4, 3, 2], (4, 3, 2))],
)
def test_grids_have_three_extents(given_extents: Any, expected: tuple[int, int, int]) -> None:
    assert extents(given_extents) == expected
