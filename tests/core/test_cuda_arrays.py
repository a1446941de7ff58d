"""What the CUDA driver reads off arrays of any library: signatures, overlaps, predicates."""

from types import SimpleNamespace
from typing import Any

import pytest

from tensorplay_core.drivers.cuda.arrays import View, overlap, view
from tensorplay_core.drivers.cuda.device import signature_check
from tensorplay_core.drivers.cuda.predicates import checked
from tensorplay_core.errors import (
    ArgumentTypeError,
    PredicateError,
)
from tensorplay_core.protocols import ConditionalKind

from .device_arrays import own, stable


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
