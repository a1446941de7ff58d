"""Arguments and results as trees: arrays by their paths, all else as constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Slot", "Tree", "flatten"]


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of an array in a tree.

    Attributes:
        index: Which of the arrays, from 0.
    """

    index: int


@dataclass(frozen=True, slots=True)
class Tree:
    """The structure of nested tuples, lists and dicts, with ``Slot`` where arrays stood.

    Attributes:
        shape: The nested containers.
        paths: Where each array was: ``"args[1]['mask']"``.
    """

    shape: Any
    paths: tuple[str, ...]

    def filled(self, arrays: Any) -> Any:
        """The containers anew, with these arrays in their places."""
        return _fill(self.shape, arrays)

    def differences(self, other: Tree) -> list[str]:
        """What ``other`` has elsewhere or otherwise, one line each; arrays are not looked at."""
        return list(_compare(self.shape, other.shape, ""))


def flatten(value: Any, is_array: Callable[[Any], bool], path: str) -> tuple[list[Any], Tree]:
    """The arrays in ``value``, and its structure.

    Args:
        value: Nested tuples, lists and dicts.
        is_array: Tells arrays from constants.
        path: What ``value`` is called.
    """
    arrays: list[Any] = []
    paths: list[str] = []

    def walk(node: Any, here: str) -> Any:
        if is_array(node):
            arrays.append(node)
            paths.append(here)
            return Slot(len(arrays) - 1)
        if isinstance(node, dict):
            # Equal dicts number their arrays alike, in whatever order they were filled.
            found = {key: walk(node[key], f"{here}[{key!r}]") for key in sorted(node, key=repr)}
            return {key: found[key] for key in node}
        if isinstance(node, tuple | list):
            return _like(node, [walk(one, f"{here}[{place}]") for place, one in enumerate(node)])
        return node

    shape = walk(value, path)
    return arrays, Tree(shape, tuple(paths))


def _fill(node: Any, arrays: Any) -> Any:
    if isinstance(node, Slot):
        return arrays[node.index]
    if isinstance(node, dict):
        return {key: _fill(one, arrays) for key, one in node.items()}
    if isinstance(node, tuple | list):
        return _like(node, [_fill(one, arrays) for one in node])
    return node


def _like(node: Any, items: list[Any]) -> Any:
    if hasattr(node, "_fields"):  # A named tuple takes its fields one by one.
        return type(node)(*items)
    return type(node)(items)


def _compare(before: Any, after: Any, path: str) -> Iterator[str]:
    here = path or "arguments"
    if isinstance(before, Slot) or isinstance(after, Slot):
        if type(before) is not type(after):
            yield f"{here}: captured {_word(before)}, got {_word(after)}"
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys(), key=repr):
            there = f"{path}[{key!r}]"
            if key not in after:
                yield f"{there}: captured {_word(before[key])}, got nothing"
            elif key not in before:
                yield f"{there}: captured nothing, got {_word(after[key])}"
            else:
                yield from _compare(before[key], after[key], there)
    elif isinstance(before, tuple | list) and type(before) is type(after):
        if len(before) != len(after):
            yield f"len({here}): captured {len(before)}, got {len(after)}"
        else:
            for place, pair in enumerate(zip(before, after, strict=True)):
                yield from _compare(*pair, f"{path}[{place}]")
    elif not _same(before, after):
        yield f"{here}: captured {_word(before)}, got {_word(after)}"


def _same(before: Any, after: Any) -> bool:
    # True equals 1 and 1.0 equals 1, and a function may tell them apart; a NaN is another's equal.
    if type(before) is not type(after):
        return False
    return before is after or bool(before == after) or bool(before != before and after != after)


def _word(node: Any) -> str:
    if isinstance(node, Slot):
        return "an array"
    if isinstance(node, dict | tuple | list):
        return f"a {type(node).__name__} of {len(node)}"
    return f"{node!r:.60}"
