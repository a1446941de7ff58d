"""Containers as they were: each difference is named, and everything is put back in its place."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, UserDict, deque
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_torch.tracking.contents import Change, Contents

ONE, OTHER = torch.ones(2), torch.ones(2)


@dataclass(slots=True)
class Stats:
    count: int
    sums: list


@dataclass(frozen=True)
class Frozen:
    inner: dict


class Thing:
    def method(self):
        """Bound anew each time that it is asked for."""


THING = Thing()


def differences(contents, was, now):
    return list(contents.differences("it", contents.of(was), now, lambda one: one is OTHER))


def both(root, change):
    """What is different once ``change`` ran, and that all is as before when it is undone."""
    contents, before = Contents(root), spelled(root)
    change(root)
    found = differences(contents, root, root)
    contents.restore()
    assert spelled(root) == before
    assert not differences(contents, root, root)
    return found


def spelled(value):
    """Everything in it, with the identity of each container."""
    if isinstance(value, torch.Tensor):
        return id(value)
    if isinstance(value, dict):
        return id(value), [(key, spelled(one)) for key, one in value.items()]
    if isinstance(value, list | tuple | deque):
        return id(value), [spelled(one) for one in value]
    if isinstance(value, SimpleNamespace | UserDict):
        return id(value), spelled(vars(value))
    if isinstance(value, Stats):
        return id(value), value.count, spelled(value.sums)
    if isinstance(value, Frozen):
        return id(value), spelled(value.inner)
    return repr(value)


def replace(key, value):
    return lambda root: root.__setitem__(key, value)


CHANGES = {
    "number in a dict": ({"a": {"b": 1}}, lambda r: r["a"].update(b=2)),
    "number in a list in a tuple": ({"a": ([1], 2)}, lambda r: r["a"][0].append(3)),
    "list that grew": ({"a": [1]}, lambda r: r["a"].append(1)),
    "list that shrank": ({"a": [1, 1]}, lambda r: r["a"].pop()),
    "list that turned": ({"a": [1, 2]}, lambda r: r["a"].reverse()),
    "deque that moved on": ({"a": deque([1, 2], 2)}, lambda r: r["a"].append(3)),
    "tensor in a dict": ({"a": {"b": ONE}}, lambda r: r["a"].update(b=OTHER)),
    "tensor that became a number": ({"a": ONE}, replace("a", 1.0)),
    "number that became a tensor": ({"a": 1.0}, replace("a", ONE)),
    "tensor gone": ({"a": [ONE]}, lambda r: r["a"].clear()),
    "number of NumPy's": ({"a": np.int64(1)}, replace("a", np.int64(2))),
    "flag of NumPy's": ({"a": np.True_}, replace("a", np.False_)),
    "date of NumPy's": ({"a": np.datetime64(1, "D")}, replace("a", np.datetime64(2, "D"))),
    "array without dimensions": ({"a": np.array(1)}, lambda r: r["a"].fill(2)),
    "array that is replaced": ({"a": np.array(1)}, replace("a", np.array(2))),
    "array in place": ({"a": np.zeros(3)}, lambda r: r["a"].__setitem__(1, 5)),
    "array of objects": ({"a": np.array([None, [1]], object)}, lambda r: r["a"][1].append(2)),
    "set": ({"a": {1}}, lambda r: r["a"].add(2)),
    "frozen set": ({"a": frozenset({1})}, replace("a", frozenset())),
    "counter": ({"a": Counter(x=1)}, lambda r: r["a"].update(x=1)),
    "order": ({"a": OrderedDict(b=1, c=2)}, lambda r: r["a"].move_to_end("b")),
    "namespace": ({"a": SimpleNamespace(b=1)}, lambda r: setattr(r["a"], "b", 2)),
    "attribute that is new": ({"a": SimpleNamespace()}, lambda r: setattr(r["a"], "b", 2)),
    "dataclass with slots": ({"a": Stats(1, [])}, lambda r: setattr(r["a"], "count", 2)),
    "list in a dataclass": ({"a": Stats(1, [])}, lambda r: r["a"].sums.append(2)),
    "frozen dataclass": ({"a": Frozen({})}, lambda r: r["a"].inner.update(b=1)),
    "dict of a user's": ({"a": UserDict(b=1)}, lambda r: r["a"].update(b=2)),
    "text": ({"a": "warm"}, replace("a", "hot")),
    "nothing": ({"a": None}, replace("a", 1)),
    "sign": ({"a": 0.0}, replace("a", -0.0)),
    "kind of number": ({"a": 1}, replace("a", True)),
    "another kind of object": ({"a": THING}, replace("a", object())),
    "container that became another": ({"a": [1]}, replace("a", {0: 1})),
    "container that became none": ({"a": [1]}, replace("a", None)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_undone(name):
    root, change = CHANGES[name]
    found = both(root, change)
    assert found
    assert all("'a' for it" in one.met for one in found)


ALIKE = {
    "object": ({"a": THING}, replace("a", Thing())),
    "function": ({"a": lambda: 1}, replace("a", lambda: 1)),
    "partial": ({"a": partial(int, 1)}, replace("a", partial(int, 1))),
}


@pytest.mark.parametrize("name", ALIKE)
def test_an_object_of_the_same_kind_is_not_looked_at(name):
    """A step may make one anew each time that means the same."""
    root, change = ALIKE[name]
    assert not both(root, change)


KEYS = {
    "removed": ({"a": {"b": 1}}, lambda r: r["a"].clear(), Change.REMOVED),
    "added": ({"a": {}}, lambda r: r["a"].update(b=1), Change.ADDED),
    "changed": ({"a": {"b": 1}}, lambda r: r["a"].update(b=2), Change.CHANGED),
}


@pytest.mark.parametrize("name", KEYS)
def test_what_became_of_an_entry(name):
    root, change, kind = KEYS[name]
    (found,) = both(root, change)
    assert found.change is kind
    assert "'b' for 'a' for it" in found.met


SAME = {
    "list made anew": ({"a": [1, 2.0]}, replace("a", [1, 2.0])),
    "list for a tuple": ({"a": (1, 2)}, replace("a", [1, 2])),
    "dict made anew": ({"a": {"b": ONE}}, replace("a", {"b": ONE})),
    "array made anew": ({"a": np.arange(3)}, replace("a", np.arange(3))),
    "number made anew": ({"a": 10**9}, replace("a", int("1000000000"))),
    "number of NumPy's": ({"a": np.float32(2)}, replace("a", np.float32(2))),
    "not a number": ({"a": float("nan")}, replace("a", float("nan"))),
    "method": ({"a": THING.method}, lambda r: replace("a", THING.method)(r)),
    "in place": ({"a": ONE}, lambda r: r["a"].add_(0)),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_as_good_is_no_change(name):
    root, change = SAME[name]
    assert not both(root, change)


def test_circles_end():
    root = {"a": []}
    root["a"].append(root)
    root["a"].append({"b": 1, "root": root["a"]})
    contents = Contents(root)
    assert not differences(contents, root, root)
    root["a"][1]["b"] = 2
    (found,) = differences(contents, root, root)
    assert "'b' for 1 for 'a' for it" in found.met
    assert [one for _, one in contents.tensors("it", contents.of(root))] == []
    contents.restore()
    assert root["a"][1]["b"] == 1
    assert not differences(contents, root, root)


def test_deep_ones_are_looked_into():
    root = inner = {}
    for _ in range(5000):
        inner["a"] = inner = {}
    contents = Contents(root)
    inner["b"] = 1
    assert len(differences(contents, root, root)) == 1
    contents.restore()
    assert not inner


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(0, 3), st.floats(), st.text(max_size=2), st.just(ONE)
)
keys = st.sampled_from("abc")
values = st.recursive(
    leaves,
    lambda one: st.one_of(
        st.lists(one, max_size=3),
        st.tuples(one, one),
        st.dictionaries(keys, one, max_size=3),
        st.lists(one, max_size=3).map(deque),
        st.builds(SimpleNamespace, a=one),
        st.builds(Stats, st.integers(0, 3), st.lists(one, max_size=2)),
        st.lists(st.integers(0, 2), min_size=1, max_size=2).map(np.array),
    ),
    max_leaves=8,
)
states = st.dictionaries(keys, values, max_size=3)


def plain(value):
    """What it holds, to be compared; without what tells containers of one kind apart."""
    if isinstance(value, torch.Tensor):
        return "tensor", id(value)
    if isinstance(value, dict):
        return "dict", sorted((key, plain(one)) for key, one in value.items())
    if isinstance(value, list | tuple | deque):
        return "list", [plain(one) for one in value]
    if isinstance(value, SimpleNamespace):
        return "object", [("a", plain(value.a))]
    if isinstance(value, Stats):
        return "object", [("count", plain(value.count)), ("sums", plain(value.sums))]
    return type(value).__name__, repr(value)


def containers(value):
    """Every container in it that can be changed."""
    inner = []
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list | tuple | deque):
        inner = list(value)
    elif isinstance(value, SimpleNamespace):
        inner = [value.a]
    elif isinstance(value, Stats):
        inner = [value.sums]
    mine = isinstance(value, dict | list | deque | SimpleNamespace | Stats | np.ndarray)
    return ([value] if mine else []) + [found for one in inner for found in containers(one)]


def alter(container, value):
    """Changes it in place, in the one way or the other."""
    if isinstance(container, dict):
        container["b"] = value
        container.pop("a", None)
    elif isinstance(container, SimpleNamespace):
        container.a = value
    elif isinstance(container, Stats):
        container.count += 1
    elif isinstance(container, np.ndarray):
        container[0] = 7
    elif container:
        container[0] = value
    else:
        container.append(value)


@given(states, st.data())
def test_whatever_changes_in_place_is_seen_and_undone(root, data):
    contents, before, places = Contents(root), spelled(root), plain(root)
    for _ in range(data.draw(st.integers(0, 3))):
        alter(data.draw(st.sampled_from(containers(root))), data.draw(values))
    assert bool(differences(contents, root, root)) == (plain(root) != places)
    contents.restore()
    assert spelled(root) == before


@given(states, states)
def test_another_one_differs_if_it_holds_other_things(one, other):
    contents = Contents(one)
    same = plain(one) == plain(other)
    assert bool(differences(contents, one, other)) != same
    twin = copy.copy(one)
    assert not differences(contents, one, twin)
