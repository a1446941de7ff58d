"""External inputs of a graph that are watched, not kept: what each was, and where it went."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tensorplay_torch.resources.storages import Watched

from .culprit import where

if TYPE_CHECKING:
    import torch

__all__ = ["Input", "listed"]

LISTED = 5
"""More dead inputs than these are only counted."""


class Input:
    """One external storage.

    Args:
        tensor: By which it was met first.
        used: What it was first used by, and where, a clause.
        held: How many references to a storage are a program's own; None if no program holds any.

    Attributes:
        address: Where it is.
    """

    def __init__(
        self, tensor: torch.Tensor, used: str, held: Callable[[int], int] | None = None
    ) -> None:
        self.address = tensor.untyped_storage().data_ptr()
        self._storage = Watched(tensor)
        self._held = held
        self._what = f"a tensor of shape {tuple(tensor.shape)}, {tensor.dtype} on {tensor.device}"
        self._used, self._gone = used, ""
        self._refs: dict[int, weakref.ref[object]] = {}
        if held is None:
            self._follow(tensor.untyped_storage())
        else:
            self.meet(tensor)

    def meet(self, tensor: torch.Tensor) -> None:
        """Another tensor over the storage.

        Where a program holds the storage, that does not die with its last user, and it takes the
        tensors themselves to see where they go.
        """
        if self._held is not None and id(tensor) not in self._refs:
            self._follow(tensor)

    def _follow(self, owner: object) -> None:
        known, key = weakref.ref(self), id(owner)

        def gone(_: object) -> None:
            this = known()
            if this is not None and not sys.is_finalizing():
                this._refs.pop(key, None)
                this._gone = where()

        self._refs[key] = weakref.ref(owner, gone)

    @property
    def dead(self) -> bool:
        """True if nobody but the graph holds it any more."""
        return not self._storage.used_beside(self._held(self._storage.key) if self._held else 0)

    def __str__(self) -> str:
        gone = f", and its last user went at {self._gone}" if self.dead and self._gone else ""
        return f"{self._what}, first used by {self._used}{gone}"


def listed(inputs: Sequence[str]) -> str:
    """Inputs that died, for an error; the first few of many."""
    more = len(inputs) - LISTED
    said = "; ".join(inputs[:LISTED])
    return said + (f"; and {more} more" if more > 0 else "")
