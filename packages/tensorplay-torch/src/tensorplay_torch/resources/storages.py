"""Storages: the memory that tensors share, as things with an identity and a lifetime."""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensorplay_torch._private import PRIVATE

__all__ = ["Aliases", "Pins", "Watched", "key_of"]

_use_count = PRIVATE["storage_use_count"].value


def key_of(tensor: torch.Tensor) -> int:
    """What identifies the tensor's storage for as long as that, or a weak reference to it, lives.

    Raises:
        NotImplementedError: The tensor has no storage of its own (a sparse one).
    """
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


class Pins:
    """Keeps the identities of storages from being given to others, not their memory.

    For the many storages that a capture sees born: a ``Watched`` of each would take thrice as long.

    Attributes:
        held: What ``_weak_ref`` of each returned.
    """

    def __init__(self) -> None:
        self.held: list[int] = []

    def add(self, storage: torch.UntypedStorage) -> None:
        """``key_of`` its tensors is no other storage's from here on."""
        self.held.append(storage._weak_ref())  # type: ignore[arg-type]  # It is an address.

    def clear(self) -> None:
        """Lets identities be given out again."""
        held, self.held = self.held, []
        for reference in held:
            torch.UntypedStorage._free_weak_ref(reference)

    def __del__(self) -> None:
        if self.held:
            self.clear()


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

    @property
    def nbytes(self) -> int:
        """Its size in bytes, 0 once it is gone."""
        storage = self.storage()
        return 0 if storage is None else storage.nbytes()

    def storage(self) -> torch.UntypedStorage | None:
        """The storage, or None once it is gone."""
        if self._ref.expired():
            return None
        return torch.UntypedStorage._new_with_weak_ptr(self.key)

    def used_beside(self, ours: int) -> bool:
        """True if more holds it than ``ours`` tensors that are known."""
        if self._ref.expired():
            return False
        if _use_count is None:
            return True
        uses, references = _counts(self)
        return uses > ours + NOBODY[0] or references > NOBODY[1]


def _counts(watched: Watched) -> tuple[int, int]:
    """References to a storage, and to the Python object that stands for it."""
    storage = watched.storage()
    assert _use_count is not None
    return _use_count(watched.key), sys.getrefcount(storage)


def _unused_counts() -> tuple[int, int]:
    """The counts that mean: held by one tensor, less that tensor."""
    tensor = torch.empty(1)
    uses, references = _counts(Watched(tensor))
    return uses - 1, references


# From the first look at a storage on, torch's object for it counts as a use.
NOBODY = _unused_counts() if _use_count is not None else (0, 0)


class Aliases:
    """The tensors by which programs hold storages, so that other holders can be told apart.

    A storage that only programs hold is one that no user can reach any more.
    """

    def __init__(self) -> None:
        self._by_key: defaultdict[int, list[weakref.ref[torch.Tensor]]] = defaultdict(list)

    def note(self, alias: torch.Tensor) -> None:
        """``alias`` is one of a program's own."""
        self._by_key[key_of(alias)].append(weakref.ref(alias))

    def count(self, key: int) -> int:
        """How many of the programs' own tensors hold the storage."""
        held = self._by_key.get(key)
        if held is None:
            return 0
        # A tensor's weak reference dies before its hold on the storage does, so this never
        # counts too many.
        held[:] = [ref for ref in held if ref() is not None]
        return len(held)

    def prune(self) -> None:
        """Forgets storages that no program holds."""
        for key in [key for key in self._by_key if not self.count(key)]:
            del self._by_key[key]
