"""The compiled parts say what Python says without them."""

from __future__ import annotations

import collections
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

from tensorplay_torch import compiled
from tensorplay_torch.resources.signatures import PLAIN, differences
from tensorplay_torch.resources.storages import key_of
from tensorplay_torch.tracking.operands import _strangers
from tensorplay_torch.tracking.operations import tensors_in

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
    same = parts.Same([first, second], [({"x": 1}, ("x", "y"))])
    assert same()
    second["b"] = [2]
    assert not same()


HOW = {
    "set": lambda one, key, value: vars(one).__setitem__(key, value),
    "delete": lambda one, key, value: vars(one).pop(key, None),
    "update": lambda one, key, value: vars(one).update({key: value}),
    "merge": lambda one, key, value: vars(one).__ior__({key: value}),
    "default": lambda one, key, value: vars(one).setdefault(key, value),
    "last": lambda one, key, value: vars(one).popitem() if vars(one) else None,
    "clear": lambda one, key, value: vars(one).clear(),
    "set it": setattr,
    "delete it": lambda one, key, value: hasattr(one, key) and delattr(one, key),
}


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3)),
    st.lists(st.sampled_from("abcdef"), unique=True),
    st.lists(
        st.tuples(st.sampled_from(list(HOW)), st.sampled_from("abcdef"), st.booleans()), max_size=5
    ),
)
def test_any_change_of_a_dict_is_seen(entries, names, changes):
    """Keys and values are compared as objects: an equal one is another."""
    assert BUILT is not None
    owner = Thing()
    vars(owner).update({key: [value] for key, value in entries.items()})
    dict_of = vars(owner)
    whole = BUILT.Same([dict_of])
    parts = BUILT.Same([], [(dict_of, tuple(names))])
    sized = BUILT.Same([], [], [dict_of])
    before = dict(dict_of)
    order = list(map(id, dict_of))
    for how, key, back in changes:
        HOW[how](owner, key, before[key] if back and key in before else [9])
        # However often it is asked, and whatever it was asked before.
        same = {key: id(value) for key, value in dict_of.items()} == {
            key: id(value) for key, value in before.items()
        }
        for _ in range(2):
            assert whole() is (same and list(map(id, dict_of)) == order)
            keys = list(map(id, dict_of)) == order
            assert parts() is (
                keys and all(dict_of.get(name) is before.get(name) for name in names)
            )
            assert sized() is (len(dict_of) == len(before))


def test_keys_count_and_their_order_does(parts):
    first, second = object(), object()
    held = {"a": first, "b": second}
    same = parts.Same([held])
    held.clear()
    held.update(b=first, a=second)
    assert not same()
    # Whose order this is not, is left to Python.
    assert not parts.Same([collections.OrderedDict(a=first)])()


def test_changes_of_a_list_are_seen(parts):
    held = [object(), object()]
    same = parts.Same([held])
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


def test_another_dict_of_attributes_is_seen(parts):
    one = Thing()
    one.a = 1
    same = parts.Same([], [], [], [one, 1, []])
    assert same()
    before = vars(one)
    one.__dict__ = dict(before)
    assert not same()
    one.__dict__ = before
    assert same()


def test_what_an_attribute_raises_comes_out(parts):
    error = None

    class Later:
        @property
        def state(self):
            if error is not None:
                raise error
            return held

    held, one = [], Later()
    same = parts.Same([], [], [], [], [(one, "state")])
    assert same()
    error = AttributeError("it is gone")
    assert not same()
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        same()
    error = None
    assert same()


def test_keywords_are_refused(parts):
    for make in (parts.Same, parts.Unmoved, parts.Forms, parts.Modes, parts.All):
        with pytest.raises(TypeError):
            make(whole=[{}])
    with pytest.raises(TypeError):
        parts.Same([])(1)
    with pytest.raises(TypeError):
        parts.Same([])(now=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ([1],),
        ([], [1]),
        ([], [({}, 1)]),
        ([], [({},)]),
        ([], [], [[]]),
        ([], [], [], 1),
        ([], [], [], [], [1]),
        ([], [], [], [], [], []),
    ],
)
def test_what_is_neither_list_nor_dict_is_refused(parts, arguments):
    with pytest.raises(TypeError):
        parts.Same(*arguments)


def test_another_attribute_is_seen(parts):
    class Counted:
        number = 1000

    same = parts.Same([], [], [], [], [(Counted, "number")])
    assert same()
    Counted.number += 1
    assert not same()
    Counted.number -= 1
    assert not same(), "an equal one is another"
    del Counted.number
    assert not same()
    with pytest.raises(AttributeError):
        parts.Same([], [], [], [], [(Counted, "number")])


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


# Strangers


@given(
    st.lists(st.sampled_from([*sorted(MADE), "leaf", "nested list", "number 3"]), max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_strangers_are_those_that_python_finds(names, known):
    """But for what requires grad and is no leaf, to which nothing is bound; and all subclasses."""
    assert BUILT is not None
    values = [_value(name) for name in names]
    storages = {}
    for value, is_known in zip(values, known, strict=False):
        for tensor in tensors_in([value]) if is_known else ():
            with contextlib.suppress(NotImplementedError):
                storages[key_of(tensor)] = is_known
    found_by_python = list(map(id, _strangers(values, storages)))
    wanted = [
        one
        for one in tensors_in(values)
        if type(one) not in PLAIN
        or (
            id(one) in found_by_python
            and (one.is_leaf or not one.requires_grad or key_of(one) not in storages)
        )
    ]
    found = BUILT.strangers(values, storages)
    assert list(map(id, found)) == list(map(id, wanted))


def _value(name):
    if name == "leaf":
        return torch.zeros(2, requires_grad=True)
    if name == "nested list":
        return [torch.zeros(2), (torch.ones(1), None), 1]
    return 3 if name == "number 3" else MADE[name]()


def test_strangers_in_lists_that_change_or_hold_themselves(parts):
    class Odd:
        @property
        def __class__(self):
            held.clear()
            return int

    held = [Odd(), *(object() for _ in range(1000))]
    assert len(parts.strangers(held, {})) == 0
    held = []
    held.append(held)
    with pytest.raises(RecursionError):
        parts.strangers(held, {})


def test_what_only_says_that_it_is_a_tensor_is_none(parts):
    class Feigned:
        __class__ = torch.Tensor

    assert len(parts.strangers([Feigned()], {})) == 0
    for make in (parts.Unmoved, parts.Forms):
        with pytest.raises(TypeError):
            make([Feigned()])


@pytest.mark.parametrize("arguments", [(), ([],), ([], []), ([], {}, 1)])
def test_strangers_of_other_arguments_are_refused(parts, arguments):
    with pytest.raises(TypeError):
        parts.strangers(*arguments)


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
