"""Tensors that must stay what they were: where their memory is, and what is read there.

``p.data = p.data[:2]``, ``p.t_()`` and ``p.as_strided_`` leave a tensor the same object at the same
address. torch's own guards tell all of that in one call; they say no as well where the mode is
another one, under autocast or in inference mode, and then the facts themselves decide. Where memory
is, is asked in each call; how an optimizer's own state is read there, which no code of anybody's
changes for long, takes turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from operator import attrgetter
from typing import Any

import torch

from tensorplay_torch.graphing.forms import Forms as InTurn
from tensorplay_torch.resources.signatures import guard_of, plain

__all__ = ["Forms"]

FACTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "requires_grad": attrgetter("requires_grad"),
    "shape": attrgetter("shape"),
    "stride()": torch.Tensor.stride,
    "dtype": attrgetter("dtype"),
    "device": attrgetter("device"),
    "layout": attrgetter("layout"),
    "is_conj()": torch.Tensor.is_conj,
    "is_neg()": torch.Tensor.is_neg,
}
KINDS = 4
"""How many modes a check learns to say yes in fast."""

_address: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr


class Forms:
    """See the module.

    Args:
        tensors: With what errors call them.
        turning: Further ones, whose shapes and the like are looked at in turn.

    Attributes:
        unchanged: Called without arguments it returns True if they are what they were.
    """

    def __init__(
        self, tensors: Mapping[torch.Tensor, str], turning: Mapping[torch.Tensor, str]
    ) -> None:
        self._tensors, self._all = list(tensors), [*tensors, *turning]
        self._names = [*tensors.values(), *turning.values()]
        self._addresses = list(map(_address, self._all))
        self._forms = self._now(self._all)
        self._turns = list(InTurn.of(list(turning)))
        self._guards: list[Callable[..., bool]] = []
        self._learn()
        self.unchanged = self._compiled()

    def _now(self, tensors: list[torch.Tensor]) -> list[list[Any]]:
        return [list(map(fact, tensors)) for fact in FACTS.values()]

    def _learn(self) -> None:
        if len(self._guards) < KINDS and plain(self._tensors):
            guard = guard_of(self._tensors)
            if guard is not None:
                self._guards.append(guard)

    def _compiled(self) -> Callable[[], bool]:
        tensors, addresses, guards = self._tensors, self._addresses, self._guards
        everything, slowly = self._all, self._unchanged_slowly
        turn = cycle(self._turns).__next__ if self._turns else None

        def unchanged() -> bool:
            # First, as a tensor that was swapped with a nested one must not reach a guard.
            if list(map(_address, everything)) != addresses:
                return False
            if turn is not None and turn().changed:
                return False
            for guard in guards:
                if guard(*tensors):
                    return True
            return slowly()

        return unchanged

    def _unchanged_slowly(self) -> bool:
        """Where no guard says yes; where the mode alone is another, the next call's will."""
        try:
            number = len(self._tensors)
            if self._now(self._tensors) != [facts[:number] for facts in self._forms]:
                return False
        except (RuntimeError, NotImplementedError):  # A nested tensor has no strides.
            return False
        self._learn()
        return True

    def differences(self) -> Iterator[str]:
        """What changed, one line each."""
        for place, (tensor, name) in enumerate(zip(self._all, self._names, strict=True)):
            if _address(tensor) != self._addresses[place]:
                yield f"{name} moved to other memory"
            for (fact, get), known in zip(FACTS.items(), self._forms, strict=True):
                try:
                    now, was = get(tensor), known[place]
                except (RuntimeError, NotImplementedError):
                    yield f"{name} has no {fact}, had {_said(known[place])}"
                    continue
                if now != was:
                    yield f"{name}.{fact} is {_said(now)}, was {_said(was)}"


def _said(value: Any) -> Any:
    return tuple(value) if isinstance(value, torch.Size) else value
