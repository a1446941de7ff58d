"""What the CUDA driver reads off arrays, streams and devices of any library."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_core.drivers.cuda import contexts
from tensorplay_core.drivers.cuda.arrays import DeviceArray, View, overlap, view
from tensorplay_core.drivers.cuda.contexts import CudaDevice
from tensorplay_core.drivers.cuda.device import signature_check
from tensorplay_core.drivers.cuda.modules import Arguments, extents
from tensorplay_core.drivers.cuda.predicates import checked
from tensorplay_core.drivers.cuda.separation import Separation
from tensorplay_core.drivers.cuda.streams import handle_of
from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    PredicateError,
    TensorplayError,
)
from tensorplay_core.protocols import ConditionalKind

GPU = CudaDevice(0)


def stable(value):
    """A name of ``value`` that is the same in every process: not of where it lies."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def own(
    shape: tuple[int, ...], typestr: str = "<f4", *, at: int = 4096, on: int = 0
) -> DeviceArray:
    owner: Any = SimpleNamespace(address=at, born=0)
    return DeviceArray(owner, shape, typestr, CudaDevice(on))


def torch_like(
    shape: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    *,
    dtype: str = "torch.float32",
    size: int = 4,
    device: Any = None,
) -> Any:
    if stride is None:
        stride = tuple(own(shape).strides[place] // 4 for place in range(len(shape)))
    return SimpleNamespace(
        shape=shape,
        dtype=dtype,
        device=device or SimpleNamespace(type="cuda", index=1),
        data_ptr=lambda: 4096,
        element_size=lambda: size,
        stride=lambda: stride,
    )


def interface_like(shape: tuple[int, ...], strides: Any = None, typestr: str = "<f4") -> Any:
    told = {"shape": shape, "typestr": typestr, "data": (4096, False), "version": 3}
    return SimpleNamespace(__cuda_array_interface__=told | {"strides": strides})


# arrays


def test_the_drivers_own_array_offers_the_interface() -> None:
    array = own((2, 3))
    told = array.__cuda_array_interface__
    assert told["data"] == (4096, False)
    assert told["version"] == 3
    assert told["stream"] is None
    assert (array.nbytes, array.strides, array.dtype, len(array)) == (24, (12, 4), "<f4", 2)
    assert view(interface_like((2, 3))) == View(4096, (2, 3), "<f4", 4, None, None)
    assert view(array).device == 0


def test_equal_signatures_are_mostly_one_object() -> None:
    assert own((2, 3)).signature is own((2, 3)).signature
    assert own((2, 3)).signature != own((3, 2)).signature
    assert own((2,)).signature != own((2,), on=1).signature


def test_torch_tensors_are_read_without_torch() -> None:
    facts = view(torch_like((2, 3), (1, 2), dtype="torch.int64", size=8))
    assert facts == View(4096, (2, 3), "<i8", 8, (8, 16), 1)
    assert facts.dense
    assert not facts.row_major
    assert view(torch_like((1,), dtype="torch.bool", size=1)).typestr == "|b1"
    assert view(torch_like((1,), dtype="torch.bfloat16", size=2)).nbytes == 2


@pytest.mark.parametrize(
    "array",
    [
        [1.0],
        None,
        "x",
        torch_like((1,), device=SimpleNamespace(type="cpu", index=None)),
        SimpleNamespace(__cuda_array_interface__=5),
    ],
    ids=["list", "None", "str", "on the host", "no mapping"],
)
def test_what_is_no_array_on_a_gpu_is_refused(array: object) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        view(array)
    assert "GPU memory" in caught.value.remedy


@pytest.mark.parametrize(
    ("shape", "strides", "row_major", "dense"),
    [
        ((2, 3), None, True, True),
        ((2, 3), (12, 4), True, True),
        ((2, 3), (4, 8), False, True),
        ((2, 3), (24, 4), False, False),
        ((2, 3), (0, 4), False, False),
        ((1, 3), (999, 4), True, True),
        ((0, 3), (999, 7), True, True),
        ((2, 3, 4), (48, 4, 12), False, True),
        ((3,), (-4,), False, False),
        ((), (), True, True),
    ],
)
def test_density_is_read_off_strides(
    shape: tuple[int, ...], strides: Any, row_major: bool, dense: bool
) -> None:
    facts = view(interface_like(shape, strides))
    assert (facts.row_major, facts.dense) == (row_major, dense)


@pytest.mark.parametrize(
    ("shape", "strides", "reach"),
    [
        ((4,), None, (4096, 4112)),
        ((4,), (8,), (4096, 4096 + 28)),
        ((4,), (-4,), (4096 - 12, 4100)),
        ((0,), None, (4096, 4096)),
        ((2, 2), (0, 4), (4096, 4104)),
    ],
)
def test_reach_is_what_an_array_may_touch(
    shape: tuple[int, ...], strides: Any, reach: tuple[int, int]
) -> None:
    assert view(interface_like(shape, strides)).reach == reach


def test_overlap_is_of_addresses() -> None:
    first, beside = view(own((4,))), view(own((4,), at=4112))
    assert overlap(first, first)
    assert not overlap(first, beside)
    assert overlap(view(own((5,))), beside)
    assert not overlap(view(own((0,))), first)


# signatures


def test_a_check_of_own_arrays_says_yes_to_their_like_alone() -> None:
    check = signature_check([own((2, 3)), own((1,), "|b1")])
    assert check([own((2, 3), at=0), own((1,), "|b1", at=8)])
    for wrong in (
        [own((2, 3))],
        [own((3, 2)), own((1,), "|b1")],
        [own((2, 3), "<i4"), own((1,), "|b1")],
        [own((2, 3), on=1), own((1,), "|b1")],
        [own((2, 3)), torch_like((1,))],
        [own((2, 3)), None],
    ):
        assert not check(wrong)


def test_a_check_of_other_arrays_compares_strides_and_devices() -> None:
    check = signature_check([torch_like((2, 3)), torch_like((2, 3), (1, 2))])
    assert check([torch_like((2, 3)), torch_like((2, 3), (1, 2))])
    assert not check([torch_like((2, 3)), torch_like((2, 3))])
    assert not check([torch_like((2, 3), (1, 2)), torch_like((2, 3), (1, 2))])
    elsewhere = SimpleNamespace(type="cuda", index=0)
    assert not check([torch_like((2, 3), device=elsewhere), torch_like((2, 3), (1, 2))])
    assert not check([torch_like((2, 3)), "no array"])


def test_arrays_that_hide_their_device_never_pass() -> None:
    hidden = interface_like((2, 3))
    assert not signature_check([hidden])([hidden])


# inputs that overlap the buffers they are copied to


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


# streams and devices


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


# predicates


@pytest.mark.parametrize("kind", [ConditionalKind.IF, ConditionalKind.WHILE])
def test_a_predicate_is_one_bool_on_the_device(kind: ConditionalKind) -> None:
    assert checked(own((1,), "|b1"), kind, 0, doing="x").pointer == 4096
    assert checked(own((), "|b1"), kind, 0, doing="x").size == 1
    assert checked(torch_like((1, 1), dtype="torch.bool", size=1), kind, 1, doing="x").size == 1


@pytest.mark.parametrize("typestr", ["<i4", "<i8"])
def test_an_index_is_one_signed_integer(typestr: str) -> None:
    checked(own((1,), typestr), ConditionalKind.SWITCH, 0, doing="x")
    checked(own((1,), typestr), None, 0, doing="x")


@pytest.mark.parametrize(
    ("predicate", "kind"),
    [
        (True, ConditionalKind.IF),
        (None, ConditionalKind.IF),
        (own((2,), "|b1"), ConditionalKind.IF),
        (own((0,), "|b1"), ConditionalKind.IF),
        (own((1,), "|u1"), ConditionalKind.IF),
        (own((1,), "<f4"), ConditionalKind.WHILE),
        (own((1,), "<i4"), ConditionalKind.WHILE),
        (own((1,), "|b1"), ConditionalKind.SWITCH),
        (own((1,), "<u4"), ConditionalKind.SWITCH),
        (own((1,), "<i2"), ConditionalKind.SWITCH),
        (own((1,), "|b1", on=1), ConditionalKind.IF),
        (own((1,), "<f4"), None),
    ],
    ids=stable,
)
def test_any_other_predicate_is_refused(predicate: object, kind: ConditionalKind | None) -> None:
    with pytest.raises(PredicateError) as caught:
        checked(predicate, kind, 0, doing="opening an if")
    assert caught.value.doing == "opening an if"
    assert "one " in caught.value.remedy


# arguments of kernels


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
