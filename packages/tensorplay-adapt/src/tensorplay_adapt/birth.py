"""Optimizer state that a capture made and that no step has changed yet, known to all its steps.

The first step of some optimizers is unlike the others: it takes the gradient whole as momentum, or
begins with the learning rate of that moment. Whoever takes it, a captured step, another of the same
optimizer, or eager code, the others are to know.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorplay_core.errors import CaptureError

__all__ = ["Birth", "undamped"]

_births: weakref.WeakKeyDictionary[torch.optim.Optimizer, Birth] = weakref.WeakKeyDictionary()


class Birth:
    """State that was made for an optimizer.

    Args:
        optimizer: Held weakly.
        entries: Parameter and key of each entry.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, entries: Sequence[tuple[Any, str]]
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.entries = tuple(entries)
        self._over = self._writing = False
        self.note()
        _births[optimizer] = self

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> Birth | None:
        """That of this optimizer, if it has taken no step since."""
        found = _births.get(optimizer)
        return None if found is None or found.over else found

    def note(self) -> None:
        """The state is now what a first step is to find."""
        self._over = False
        self._seen = [(one, one._version) for one in self._tensors()]
        self._writing = False

    def write(self, fill: Callable[[Sequence[tuple[Any, str]]], object]) -> None:
        """Makes the state another that a first step is to find; broken off, it is to come again.

        Args:
            fill: Fills the entries that it is given.
        """
        self._writing = True
        fill(self.entries)
        self.note()

    def end(self) -> None:
        """A step is taken."""
        self._over = True

    @property
    def over(self) -> bool:
        """True if a step was taken, or state of other steps put in."""
        # On the CPU replays count as writes, as eager work does; on CUDA they are told by ``end``.
        return self._over or (
            not self._writing and any(one._version != seen for one, seen in self._seen)
        )

    def _tensors(self) -> list[torch.Tensor]:
        optimizer = self._optimizer()
        if optimizer is None:
            return []
        values = [optimizer.state.get(one, {}).get(key) for one, key in self.entries]
        return [value for value in values if isinstance(value, torch.Tensor)]


def undamped(subject: str) -> CaptureError:
    """The error for a first step without dampening that a graph cannot be made to take."""
    return CaptureError(
        doing="capturing",
        subject=subject,
        met="the first step of SGD with dampening takes the gradient whole, and the dampening in "
        "this graph cannot be changed after it",
        remedy="Take one step eagerly before the capture.",
    )
