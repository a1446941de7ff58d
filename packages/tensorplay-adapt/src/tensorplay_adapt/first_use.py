"""Steps whose first call does other work than later ones: no replay would do that work.

Code that makes something at its first call and keeps it is ordinary, and fine as long as what it
makes is a constant: a table of positions, a mask. A statistic that begins there, a scale that the
first batch decides, a random start, or a branch for the first call are not: the steps before the
capture would have taken them, and the first step to come would not. They show as work of the first
step that the second does not do, or as a constant that is written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from torch._ops import OpOverload

from tensorplay_core.errors import OperationRefused
from tensorplay_torch.graphing.eligibility import is_ddp
from tensorplay_torch.resources.storages import Pins, key_of
from tensorplay_torch.tracking.culprit import name_of
from tensorplay_torch.tracking.operations import Kind, describe, tensors_in

from .admission import subject_of
from .recipe import Recipe

if TYPE_CHECKING:
    import torch

__all__ = ["FirstUse"]

FRESH = ("_like", "aten.new_", "aten.lift")
"""In names of operations whose result does not depend on the tensor that they are given."""


class FirstUse:
    """Compares two steps; a listener of a dispatch mode.

    Work on nothing but constants is left out: that is what a first call may do alone.
    """

    def __init__(self) -> None:
        self._steps: list[list[str]] = []
        self._constants: set[int] = set()
        self._kept: set[int] = set()
        self._pins = Pins()
        self._listening = self._constant = False
        self._again = ""

    def begin(self) -> None:
        """A step begins. Beyond the second none is looked at."""
        self._kept = set(self._constants)
        self._listening = len(self._steps) < 2
        if self._listening:
            self._steps.append([])

    def pause(self) -> None:
        """What follows in this step differs by right: an optimizer's first update makes state."""
        self._listening = False

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """``func`` is about to run."""
        if not self._listening:
            return
        name = name_of(func)
        self._constant = False
        if not isinstance(func, OpOverload):
            self._steps[-1].append(name)
            return
        operation = describe(func)
        if operation.valued or operation.kind is Kind.QUERY:
            # ``cond`` and ``while_loop`` read values outside of captures, and may decide otherwise.
            self._listening = False
            return
        written = list(map(_key, operation.written(args, kwargs)))
        fresh = any(one in name for one in FRESH)
        self._constant = not operation.seeded and (
            fresh or all(_key(one) in self._constants for one in _tensors(args, kwargs))
        )
        if any(key in self._kept for key in written):
            self._again = self._again or name
        if not self._constant:
            self._steps[-1].append(name)
            self._constants.difference_update(written)

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """It has run."""
        if self._listening and self._constant:
            for tensor in tensors_in((result,)):
                key = _key(tensor)
                if key is not None and key not in self._constants:
                    self._pins.add(tensor.untyped_storage())
                    self._constants.add(key)

    def check(self, recipe: Recipe, bound: Sequence[str]) -> None:
        """Refuses a step whose first call does other work than later ones.

        Args:
            recipe: The step.
            bound: What attributes its first call set.

        Raises:
            OperationRefused: It is said what, and what it keeps.
        """
        met = self.difference()
        # To arrange buckets, and to compile, is work of first calls.
        if met is None or any(map(is_ddp, recipe.module.modules())) or recipe.compiled:
            return
        kept = f" (its first call sets {', '.join(bound)})" if bound else ""
        raise OperationRefused(
            operation="work of the first call alone",
            subject=subject_of(recipe),
            met=f"{met}{kept}; replays do the work of later calls",
            remedy="Call it once before the capture, as module(inputs), so that what it makes at "
            "first use exists; or make it in __init__, as a buffer.",
        )

    def difference(self) -> str | None:
        """What the first step did that the second did not, a clause; None if they are alike."""
        if len(self._steps) < 2:
            return None
        for first, second in zip_longest(*self._steps[:2], fillvalue="nothing more"):
            if first != second:
                return f"the first step calls {first} where the second calls {second}"
        if self._again:
            return f"what the first step made is changed by {self._again} in the second"
        return None


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    return [*tensors_in(args), *tensors_in(kwargs.values())]


def _key(tensor: torch.Tensor) -> int | None:
    try:
        return key_of(tensor)
    except NotImplementedError:
        return None
