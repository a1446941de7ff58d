"""The compiled check of objects that are to be the same says what Python says."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .built import BUILT, needs_parts

pytestmark = needs_parts


class Thing:
    """Has attributes, and can be held weakly."""


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
