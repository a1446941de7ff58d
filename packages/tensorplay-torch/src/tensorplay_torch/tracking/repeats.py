"""Work that differs from call to call on the same inputs: a replay would repeat the capture's.

Python may count, draw or look at the clock where nobody sees it: in an iterator, a generator
object of its own, an object with slots, an array of NumPy's. What comes of it are other numbers
among the arguments of operations, or other operations. Two warm-up calls are compared by both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch._ops import OpOverload

from .culprit import name_of
from .fixed import same
from .operations import Kind, describe

__all__ = ["Repeats"]

FEW = 16
"""A longer constant is data."""
MADE = "aten.lift_fresh"
"""What ``torch.tensor`` calls on the tensor that it made of Python numbers."""


class Repeats:
    """Compares the last two calls; a listener of a dispatch mode.

    From the first value that the host reads on, a call may differ by right: ``cond`` and
    ``while_loop`` decide on values outside of captures. So only what stands before is compared.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._before: list[tuple[str, tuple[Any, ...]]] = []
        self._now: list[tuple[str, tuple[Any, ...]]] = []
        self._listening = False

    def begin(self) -> None:
        """A call begins."""
        self._calls += 1
        self._before, self._now = self._now, []
        self._listening = True

    def pause(self) -> None:
        """What follows in this call does not count."""
        self._listening = False

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """``func`` is about to run."""
        if not self._listening:
            return
        if isinstance(func, OpOverload):
            operation = describe(func)
            if operation.valued or operation.kind is Kind.QUERY:
                self._listening = False
                return
        name = name_of(func)
        values = (*args, *kwargs.values())
        self._now.append((name, tuple(_numbers(values, name == MADE))))

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """It has run."""

    def difference(self) -> str | None:
        """Where the last call differs from the one before, a clause; None if it does not.

        Other operations count from the third call on: the first may make what later ones use.
        """
        if self._calls < 2:
            return None
        names = [[name for name, _ in call] for call in (self._before, self._now)]
        if names[0] != names[1]:
            if self._calls < 3:
                return None
            for old, new in zip_longest(*names, fillvalue="nothing more"):
                if old != new:
                    return f"one call runs {old} where the next runs {new}"
        for (name, was), (_, now) in zip(self._before, self._now, strict=True):
            for one, other in zip_longest(was, now):
                if not same(one, other):
                    return f"{name} gets {one} in one call and {other} in the next"
        return None


def _numbers(values: Sequence[Any], made: bool) -> Iterator[Any]:
    for value in values:
        if isinstance(value, bool | int | float | complex):
            yield value
        elif isinstance(value, list | tuple):
            yield from _numbers(value, made)
        elif made and isinstance(value, torch.Tensor) and _is_small(value):
            yield from value.reshape(-1).tolist()


def _is_small(value: torch.Tensor) -> bool:
    plain = type(value) is torch.Tensor and value.layout == torch.strided
    return plain and value.device.type == "cpu" and value.numel() <= FEW
