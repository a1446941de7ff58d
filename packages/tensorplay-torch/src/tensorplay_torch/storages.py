"""Storages: the memory that tensors share, as things with an identity and a lifetime."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import TYPE_CHECKING

from torch.multiprocessing.reductions import StorageWeakRef

from ._private import PRIVATE

if TYPE_CHECKING:
    import torch

__all__ = ["Aliases", "Watched", "key_of"]

_use_count = PRIVATE["storage_use_count"].value


def key_of(tensor: torch.Tensor) -> int:
    """What identifies the tensor's storage for as long as that, or a weak reference to it, lives.

    Raises:
        NotImplementedError: The tensor has no storage of its own (a sparse one).
    """
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


class Watched:
    """A storage that is known, and not kept alive.

    Its identity is not given to another storage while this lives.

    Attributes:
        key: As ``key_of``.
    """

    __slots__ = ("_ref", "key")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._ref = StorageWeakRef(tensor.untyped_storage())
        self.key: int = self._ref.cdata

    def used_beside(self, ours: int) -> bool:
        """True if more holds it than the ``ours`` references that are known."""
        if self._ref.expired():
            return False
        return _use_count is None or _use_count(self.key) > ours


class Aliases:
    """The tensors by which a program holds storages, so that other holders can be told apart.

    A storage that only the program holds is one that no user can reach any more.
    """

    def __init__(self) -> None:
        self._by_key: defaultdict[int, list[weakref.ref[torch.Tensor]]] = defaultdict(list)

    def note(self, alias: torch.Tensor) -> None:
        """``alias`` is one of the program's own."""
        self._by_key[key_of(alias)].append(weakref.ref(alias))

    def count(self, key: int) -> int:
        """How many of the program's own tensors hold the storage."""
        held = self._by_key.get(key)
        if held is None:
            return 0
        # A tensor's weak reference dies before its hold on the storage does, so this never
        # counts too many.
        held[:] = [ref for ref in held if ref() is not None]
        return len(held)
