"""Arguments as trees: arrays by their paths, constants compared strictly."""

from __future__ import annotations

from collections import namedtuple

import pytest

from tensorplay_cupy.trees import Slot, flatten

Pair = namedtuple("Pair", "one two")


class Array:
    """Stands for an array."""


def is_array(value):
    return isinstance(value, Array)


def tree(value):
    return flatten(value, is_array, "")[1]


def test_arrays_come_in_order_with_their_paths():
    a, b, c = Array(), Array(), Array()
    arrays, found = flatten(((a, 2), {"mask": [b, Pair(None, c)]}), is_array, "")
    assert arrays == [a, b, c]
    assert found.paths == ("[0][0]", "[1]['mask'][0]", "[1]['mask'][1][1]")


def test_a_tree_is_filled_as_it_was():
    a, b = Array(), Array()
    value = ({"x": [a, 3], "y": Pair("t", b)}, ())
    arrays, found = flatten(value, is_array, "")
    assert found.filled(arrays) == value
    assert isinstance(found.filled(arrays)[0]["y"], Pair)


def test_equal_dicts_number_their_arrays_alike():
    a, b = Array(), Array()
    one, other = flatten({"a": a, "b": b}, is_array, ""), flatten({"b": b, "a": a}, is_array, "")
    assert one[0] == other[0]
    assert one[1].differences(other[1]) == []
    assert list(other[1].filled(other[0])) == ["b", "a"]


@pytest.mark.parametrize(
    "value", [1, 1.0, True, "x", None, (), [], {}, float("nan"), (1, [2, {"a": 3.5}])], ids=repr
)
def test_equal_constants_are_equal(value):
    import copy

    assert tree(value).differences(tree(copy.deepcopy(value))) == []


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        (1, True, "arguments"),
        (1, 1.0, "arguments"),
        ((1, 2), (1, 3), "[1]"),
        ((1, 2), [1, 2], "arguments"),
        ((1, 2), (1, 2, 3), "len(arguments)"),
        ({"a": 1}, {"b": 1}, "['a']"),
        ({"a": 1}, {"a": 1, "b": 2}, "['b']"),
        ({"a": (Array(), 1)}, {"a": (1, 1)}, "['a'][0]"),
        ([None], [Array()], "[0]"),
    ],
)
def test_differences_are_named_by_their_path(before, after, where):
    found = tree(before).differences(tree(after))
    assert found
    assert any(line.startswith(f"{where}: captured ") for line in found)


def test_arrays_are_not_looked_at():
    assert tree([Array()]).differences(tree([Array()])) == []
    assert tree([Array()]).shape == [Slot(0)]
