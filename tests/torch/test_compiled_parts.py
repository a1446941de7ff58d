"""The compiled parts say what Python says without them."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tensorplay_torch.resources.signatures import differences

from .built import BUILT, needs_parts
from .odd_tensors import MADE

pytestmark = needs_parts


# Forms

kinds = st.sampled_from(sorted(MADE))


def _buffers(names: list[str]) -> list[Any]:
    # What staging takes as buffers.
    unfit = {"subclass", "an array", "none", "sparse", "nested", "quantized", "meta", "zero"}
    return [MADE[name]() for name in names if name not in unfit]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
@given(st.lists(kinds, max_size=4), st.lists(kinds, max_size=4))
def test_forms_say_yes_to_what_has_no_difference(static: list[str], given: list[str]) -> None:
    assert BUILT is not None
    buffers, inputs = _buffers(static), [MADE[name]() for name in given]
    said, found = BUILT.Forms(buffers)(inputs), differences(buffers, inputs)
    assert said == (not found)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
@pytest.mark.parametrize("name", MADE)
def test_forms_of_each_kind(parts, name):
    buffers = _buffers(["plain", "complex", "one row", "empty"])
    for buffer in buffers:
        one = MADE[name]()
        assert parts.Forms([buffer])([one]) == (not differences([buffer], [one]))


def test_forms_take_lists_and_tuples(parts):
    check = parts.Forms([torch.zeros(2), torch.zeros(3)])
    pair = [torch.ones(2), torch.ones(3)]
    assert check(pair)
    assert check(tuple(pair))
    assert not check(iter(pair))
    assert not check(torch.ones(2, 2))
    assert not check({0: pair[0], 1: pair[1]})
    assert not check(pair[:1])
    with pytest.raises(TypeError):
        parts.Forms([1])


def test_forms_inside_transforms(parts):
    check = parts.Forms([torch.zeros(3)])
    seen = []
    torch.func.vmap(lambda x: seen.append(check([x])) or x)(torch.zeros(2, 3))
    assert seen == [False]


# Unmoved

CHANGES = {
    "data": lambda t: setattr(t, "data", torch.zeros(4, 4)),
    "rows": lambda t: setattr(t, "data", t.data[:2]),
    "turned": lambda t: setattr(t, "data", t.data.t()),
    "transposed": lambda t: t.detach().t_(),
    "dtype": lambda t: setattr(t, "data", t.data.double()),
    "frozen": lambda t: t.requires_grad_(False),
    "resized": lambda t: t.data.resize_(2, 2),
    "set": lambda t: t.data.set_(torch.zeros(4, 4)),
    "swapped": lambda t: torch.utils.swap_tensors(t, nn.Parameter(torch.zeros(4, 4))),
}


@pytest.mark.parametrize("change", [CHANGES[name] for name in CHANGES], ids=list(CHANGES))
def test_what_moved_is_seen(parts, change):
    tensors = [nn.Parameter(torch.randn(4, 4)) for _ in range(3)]
    unmoved = parts.Unmoved(tensors)
    with torch.no_grad():
        tensors[1].mul_(2)
    assert unmoved()
    before = (tensors[1].data_ptr(), tensors[1].shape, tensors[1].stride(), tensors[1].dtype)
    change(tensors[1])
    after = (tensors[1].data_ptr(), tensors[1].shape, tensors[1].stride(), tensors[1].dtype)
    assert unmoved() is (before == after and tensors[1].requires_grad)


# Modes


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_modes_are_what_they_were(parts, kind):
    plain = parts.Modes(kind)
    with torch.autocast(kind, torch.bfloat16) if kind == "cpu" else _cuda_autocast(torch.bfloat16):
        assert not plain()
        inside = parts.Modes(kind)
        assert inside()
        with (
            torch.autocast("cpu", torch.float16) if kind == "cpu" else _cuda_autocast(torch.float16)
        ):
            assert not inside()
        other = "cuda" if kind == "cpu" else "cpu"
        assert parts.Modes(other)()
    assert plain()
    assert not inside()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert not plain()
    finally:
        torch.set_default_dtype(before)
    assert plain()


@contextlib.contextmanager
def _cuda_autocast(dtype):
    """What ``torch.autocast`` sets, where there is no GPU too."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.parametrize("kind", [1, "nothing of the kind"])
def test_modes_of_no_device_are_refused(parts, kind):
    with pytest.raises((TypeError, RuntimeError)):
        parts.Modes(kind)


# All


@given(st.lists(st.sampled_from(["same", "unmoved", "modes", "yes", "no"]), max_size=4))
def test_all_say_yes_or_the_other_says(names):
    assert BUILT is not None
    made = {
        "same": BUILT.Same([[1]]),
        "unmoved": BUILT.Unmoved([torch.zeros(2)]),
        "modes": BUILT.Modes("cpu"),
        "yes": lambda: 1,
        "no": list,
    }
    answer = object()
    said = BUILT.All([made[name] for name in names], lambda: answer)()
    assert said is (answer if "no" in names else True)


def test_each_kind_of_check_says_no(parts):
    held, tensor = [1], torch.zeros(2)
    checks = [parts.Same([held]), parts.Unmoved([tensor]), parts.Modes("cpu")]
    each = [parts.All([one], bool) for one in checks]
    together = parts.All(checks, bool)
    assert [one() for one in each] == [True] * 3
    assert together()
    held[0] = 2
    tensor.data = torch.zeros(3)
    with torch.autocast("cpu"):
        assert [one() for one in each] == [False] * 3
    assert not together()


def test_what_a_check_raises_comes_out(parts):
    def failing():
        raise KeyError("a check")

    with pytest.raises(KeyError):
        parts.All([failing], bool)()
    with pytest.raises(KeyError):
        parts.All([bool], failing)()
    with pytest.raises(TypeError):
        parts.All([bool], bool)(1)
    with pytest.raises(TypeError):
        parts.All([])


def test_checks_of_checks_of_checks_end(parts):
    deep = bool
    for _ in range(20_000):
        deep = parts.All([deep], bool)
    with pytest.raises(RecursionError):
        deep()


# Lifetimes


class Thing:
    pass


def test_what_parts_hold_goes_with_them(parts):
    thing = Thing()
    held = {"thing": thing}
    held["same"] = parts.Same([held], [(held, ("thing",))])
    held["all"] = parts.All([held["same"], held.__len__], held.__len__)
    gone = weakref.ref(thing)
    del thing, held
    gc.collect()
    assert gone() is None


def test_nothing_is_leaked(parts):
    x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    marker = object()

    def backward(context, grads, whole):
        return (grads[0],)

    before = sys.getrefcount(marker), sys.getrefcount(backward), sys.getrefcount(x)
    for _ in range(200):
        out = y.clone()
        parts.connect(backward, marker, (x,), (out,), (0,), False, True)
        out.sum().backward()
        parts.Forms([x])([y])
        parts.Unmoved([x, y])()
        parts.Same(
            [[marker]], [({"a": marker}, ("a", "b"))], [{}], [marker], [(BUILT, "__name__")]
        )()
        parts.All([parts.Modes("cpu"), lambda: True], bool)()
        parts.versions([x, y])
        parts.strangers([x, [y]], {})
        parts.aliases([y])
    del out
    gc.collect()
    assert (sys.getrefcount(marker), sys.getrefcount(backward), sys.getrefcount(x)) == before
