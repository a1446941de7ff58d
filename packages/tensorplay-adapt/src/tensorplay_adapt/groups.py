"""The groups of an optimizer at each call: what changed is followed where it can be, else named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from operator import is_
from typing import Any

import torch

from tensorplay_torch.compiled import parts
from tensorplay_torch.tracking.fixed import same

from .formulas import Key
from .hyperparameters import Hyperparameters, values_of

__all__ = ["Groups"]

ABSENT = object()


class _Number:
    """Stands in an option for a number, which is followed by itself."""

    def __repr__(self) -> str:
        return "a number"


NUMBER = _Number()


class Groups:
    """See the module.

    Args:
        optimizer: Its groups hold now what the graphs were captured with.

    Attributes:
        graphs: The numbers of each graph that follows; more may be added.
        overridden: Values that stand in the graphs in place of the groups' own.
        checks: With compiled parts, what is all true only if ``unchanged`` is, each cheap to ask.
            ``follow`` makes another list.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *graphs: Hyperparameters) -> None:
        self._optimizer = optimizer
        self.graphs = list(graphs)
        self.overridden: dict[Key, float] = {}
        self._turning: set[Key] = set()
        self._options = dict(_options(optimizer))
        self._names = {
            (place, name) for place, group in enumerate(optimizer.param_groups) for name in group
        }
        self.checks: list[Callable[[], object]] = []
        self._note()

    def _note(self) -> None:
        # Views show what the groups hold at the time.
        self._views = [group.values() for group in self._optimizer.param_groups]
        self._keys = list(map(list, self._optimizer.param_groups))
        self._seen = list(chain.from_iterable(self._views))
        # Who writes into a list leaves the list where it was.
        self._lists = [
            value
            for group in self._optimizer.param_groups
            for name, value in group.items()
            if name != "params" and isinstance(value, list | dict)
        ]
        self._contents = list(map(_held, self._lists))
        self.checks = []
        if (compiled := parts()) is not None:
            held = compiled.Same(self._optimizer.param_groups)
            self.checks = [held, *([self._lists_hold] if self._lists else ())]

    def unchanged(self) -> bool:
        """True if every entry of the groups is the very object that it was."""
        return (
            list(map(list, self._optimizer.param_groups)) == self._keys
            and all(map(is_, chain.from_iterable(self._views), self._seen))
            and self._lists_hold()
        )

    def _lists_hold(self) -> bool:
        return all(map(_holds, self._lists, self._contents))

    def follow(self) -> bool:
        """Makes the graphs compute with what the groups hold now, if all of it can be."""
        if any(True for _ in self.differences()):
            return False
        self._write()
        self._note()
        return True

    def _write(self) -> None:
        values = values_of(self._optimizer) | self.overridden
        for graph in self.graphs:
            graph.write(values)
        self._turning.clear()

    def override(self, values: dict[Key, float]) -> None:
        """Puts these values into the graphs until they are overridden otherwise."""
        self._turning.update(self.overridden, values)
        self.overridden = values
        self._write()

    def differences(self) -> Iterator[str]:
        """What changed that cannot be followed, one line each."""
        values = values_of(self._optimizer)
        refused: dict[Key, str] = {}
        # An override that was broken off may be finished, whatever the graphs hold meanwhile.
        asked = {
            key: value
            for key, value in {**values, **self.overridden}.items()
            if key not in self._turning
        }
        for graph in self.graphs:
            for key, was, now in graph.refused(asked):
                refused[key] = f"{_spelled(key)} is {now}, and {was} is fixed in the graph"
            for key in graph.keys - values.keys():
                if self._read(key[0], key[1]):
                    refused[key] = (
                        f"{_spelled(key)} is {self._said_now(key)}, was a number of Python's"
                    )
        yield from refused.values()
        options = dict(_options(self._optimizer))
        for (place, name), was in self._options.items():
            # One that is a number now is no option any more, and was none to follow.
            if self._read(place, name) and not _alike(was, options.get((place, name), ABSENT)):
                key = place, name, None
                said = "a tensor" if isinstance(was, torch.Tensor) else _said(was)
                yield f"{_spelled(key)} is {self._said_now(key)}, was {said}"
        for place, group in enumerate(self._optimizer.param_groups):
            for name in group:
                if (place, name) not in self._names and self._read(place, name):
                    yield f"{_spelled((place, name, None))} is new"

    def _read(self, place: int, name: str) -> bool:
        return any(graph.reads(place, name) for graph in self.graphs)

    def _said_now(self, key: Key) -> str:
        for group in self._optimizer.param_groups[key[0] :]:
            return _said(_copied(group[key[1]])) if key[1] in group else "gone"
        return "gone"


def _options(optimizer: torch.optim.Optimizer) -> Iterator[tuple[tuple[int, str], Any]]:
    """Every entry of the groups that is no number to follow; copies of what may be changed."""
    values = values_of(optimizer)
    numbers: dict[tuple[int, str], set[int | None]] = {}
    for place, name, index in values:
        numbers.setdefault((place, name), set()).add(index)
    for place, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            indices = numbers.get((place, name), set())
            if name == "params" or None in indices:
                continue
            if indices:
                value = [NUMBER if n in indices else one for n, one in enumerate(value)]
            yield (place, name), _copied(value)


def _copied(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_copied(one) for one in value]
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return value


def _held(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def _holds(container: Any, before: list[Any]) -> bool:
    now = _held(container)
    return len(now) == len(before) and all(map(is_, now, before))


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return same(one, other)


def _said(value: Any) -> str:
    return "another tensor" if isinstance(value, torch.Tensor) else f"{value!r:.60}"


def _spelled(key: Key) -> str:
    place, name, index = key
    return f"param_groups[{place}][{name!r}]" + ("" if index is None else f"[{index}]")
