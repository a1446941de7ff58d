"""The compiled parts say what Python says without them."""

from __future__ import annotations

import collections
import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tensorplay_torch import compiled
from tensorplay_torch.resources.signatures import differences

BUILT = compiled.parts()

pytestmark = pytest.mark.skipif(
    BUILT is None, reason=f"the compiled parts are not in use: {compiled.summary()}"
)


@pytest.fixture
def parts() -> compiled.Parts:
    assert BUILT is not None
    return BUILT


# Forms

MADE = {
    "plain": lambda: torch.zeros(2, 3),
    "another plain": lambda: torch.ones(2, 3),
    "parameter": lambda: nn.Parameter(torch.zeros(2, 3)),
    "with history": lambda: torch.zeros(2, 3, requires_grad=True) * 2,
    "inference": lambda: _inference(torch.zeros(2, 3)),
    "transposed": lambda: torch.zeros(3, 2).t(),
    "with gaps": lambda: torch.zeros(2, 6)[:, ::2],
    "double": lambda: torch.zeros(2, 3, dtype=torch.float64),
    "one row": lambda: torch.zeros(1, 3),
    "one row of others": lambda: torch.zeros(4, 3)[:1].as_strided((1, 3), (7, 1)),
    "empty": lambda: torch.zeros(0, 3),
    "empty of others": lambda: torch.zeros(3, 0).t(),
    "number": lambda: torch.tensor(1.0),
    "complex": lambda: torch.zeros(2, 3, dtype=torch.complex64),
    "conjugated": lambda: torch.zeros(2, 3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.zeros(2, 3, dtype=torch.complex64).conj().imag,
    "zero": lambda: torch._efficientzerotensor((2, 3)),
    "meta": lambda: torch.zeros(2, 3, device="meta"),
    "sparse": lambda: torch.zeros(2, 3).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(3), torch.zeros(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8),
    "subclass": lambda: torch.zeros(2, 3).as_subclass(_Named),
    "an array": lambda: [[0.0] * 3] * 2,
    "none": lambda: None,
}  # fmt: skip


class _Named(torch.Tensor):
    pass


def _inference(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()


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


# Same


def test_the_same_objects(parts):
    first, second = [1], {"a": 1.5, "b": [2]}
    same = parts.Same([first, second], [({"x": 1}, ("x", "y"))], [], [])
    assert same()
    second["b"] = [2]
    assert not same()


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3)), st.data())
def test_any_change_of_a_dict_is_seen(entries, data):
    """Values are compared as objects: an equal one is another."""
    assert BUILT is not None
    held = {key: [value] for key, value in entries.items()}
    names = data.draw(st.lists(st.sampled_from("abcdef"), unique=True))
    whole = BUILT.Same([held], [], [], [])
    parts = BUILT.Same([], [(held, tuple(names))], [], [])
    sized = BUILT.Same([], [], [held], [])
    before = dict(held)
    order = list(held)
    for key in data.draw(st.lists(st.sampled_from("abcdef"), max_size=3)):
        if key in held and data.draw(st.booleans()):
            del held[key]
        else:
            held[key] = before[key] if data.draw(st.booleans()) and key in before else [9]
    same = {key: id(value) for key, value in held.items()} == {
        key: id(value) for key, value in before.items()
    }
    if whole():
        assert same
    if same and list(held) == order:
        assert whole()
    assert parts() is all(held.get(name) is before.get(name) for name in names)
    assert sized() is (len(held) == len(before))


def test_keys_count_and_their_order_does(parts):
    first, second = object(), object()
    held = {"a": first, "b": second}
    same = parts.Same([held], [], [], [])
    held.clear()
    held.update(b=first, a=second)
    assert not same()
    # Whose order this is not, is left to Python.
    assert not parts.Same([collections.OrderedDict(a=first)], [], [], [])()


def test_changes_of_a_list_are_seen(parts):
    held = [object(), object()]
    same = parts.Same([held], [], [], [])
    assert same()
    held.reverse()
    assert not same()
    held.reverse()
    assert same()
    held.append(1)
    assert not same()


def test_another_class_is_seen(parts):
    class First:
        pass

    class Second(First):
        pass

    one = First()
    same = parts.Same([], [], [], [one, 1])
    assert same()
    one.__class__ = Second
    assert not same()
    one.__class__ = First
    assert same()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ([],),
        ([1], [], [], []),
        ([], [1], [], []),
        ([], [({}, 1)], [], []),
        ([], [], [[]], []),
        ([], [], [], 1),
    ],
)
def test_what_is_neither_list_nor_dict_is_refused(parts, arguments):
    with pytest.raises(TypeError):
        parts.Same(*arguments)


# Lifetimes


class Thing:
    pass


def test_what_parts_hold_goes_with_them(parts):
    thing = Thing()
    held = {"thing": thing}
    held["same"] = parts.Same([held], [(held, ("thing",))], [], [])
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
        parts.Same([[marker]], [({"a": marker}, ("a", "b"))], [{}], [marker])()
        parts.versions([x, y])
        parts.aliases([y])
    del out
    gc.collect()
    assert (sys.getrefcount(marker), sys.getrefcount(backward), sys.getrefcount(x)) == before
