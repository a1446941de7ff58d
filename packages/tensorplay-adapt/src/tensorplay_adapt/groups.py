"""The groups of an optimizer at each call: what changed is followed where it can be, else named."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import is_
from typing import Any

import torch

from .formulas import Key
from .hyperparameters import Hyperparameters, values_of
from .optimizers import rule_of

__all__ = ["Groups"]


class Groups:
    """See the module.

    Args:
        optimizer: Its groups hold now what the graphs were captured with.

    Attributes:
        graphs: The numbers of each graph that follows; more may be added.
        overridden: Values that stand in the graphs in place of the groups' own.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *graphs: Hyperparameters) -> None:
        self._optimizer = optimizer
        self.graphs = list(graphs)
        self.overridden: dict[Key, float] = {}
        self._options = list(_options(optimizer))
        self._note()

    def _note(self) -> None:
        # Views show what the groups hold at the time.
        self._views = [group.values() for group in self._optimizer.param_groups]
        self._sizes = list(map(len, self._views))
        self._seen = list(chain.from_iterable(self._views))

    def unchanged(self) -> bool:
        """True if every entry of the groups is the very object that it was."""
        return list(map(len, self._views)) == self._sizes and all(
            map(is_, chain.from_iterable(self._views), self._seen)
        )

    def follow(self) -> bool:
        """Makes the graphs compute with what the groups hold now, if all of it can be."""
        if any(True for _ in self.differences()):
            return False
        self._write()
        self._note()
        return True

    def override(self, values: dict[Key, float]) -> None:
        """Puts these values into the graphs until they are overridden otherwise."""
        self.overridden = values
        self._write()

    def _write(self) -> None:
        values = values_of(self._optimizer) | self.overridden
        for graph in self.graphs:
            graph.write(values)

    def differences(self) -> Iterator[str]:
        """What changed that cannot be followed, one line each."""
        values = values_of(self._optimizer)
        refused: dict[Key, str] = {}
        for graph in self.graphs:
            for key, was, now in graph.refused({**values, **self.overridden}):
                refused[key] = f"{_spelled(key)} is {now}, and {was} is fixed in the graph"
            for key in graph.keys - values.keys():
                refused[key] = f"{_spelled(key)} is {self._said_now(key)}, was a number"
        yield from refused.values()
        options = {(place, name): value for place, name, value in _options(self._optimizer)}
        for place, name, was in self._options:
            now = options.get((place, name), was)
            if now is not was and (isinstance(was, torch.Tensor) or not _same(was, now)):
                yield f"{_spelled((place, name, None))} is {_said(now)}, was {_said(was)}"
        if rule_of(self._optimizer) is None:
            # What torch's own optimizers do not know, they do not read either.
            known = {(place, name) for place, name, _ in self._options}
            known |= {key[:2] for graph in self.graphs for key in graph.keys}
            for place, name in {*options, *(key[:2] for key in values)} - known:
                yield f"{_spelled((place, name, None))} is new"

    def _said_now(self, key: Key) -> str:
        for group in self._optimizer.param_groups[key[0] :]:
            return _said(group[key[1]]) if key[1] in group else "gone"
        return "gone"


def _options(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, str, Any]]:
    """Every entry of the groups that is no number to follow."""
    numbers = {key[:2] for key in values_of(optimizer)}
    for place, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params" and (place, name) not in numbers:
                yield place, name, value


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _said(value: Any) -> str:
    return "another tensor" if isinstance(value, torch.Tensor) else f"{value!r:.60}"


def _spelled(key: Key) -> str:
    place, name, index = key
    return f"param_groups[{place}][{name!r}]" + ("" if index is None else f"[{index}]")
