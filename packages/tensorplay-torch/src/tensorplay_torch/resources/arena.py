"""The memory of CPU captures: outputs of recorded operations, reused once nobody holds them.

A graph's program holds tensors of its own over every storage that it uses. A storage that nothing
else holds is out of the user's reach, and the work that used it comes earlier in the program, so a
later output may take its place. Graphs that share an arena must be replayed one at a time and in
the order of their captures, as graphs that share a pool on CUDA.

An arena keeps no memory: that is back when the last graph and the last tensor over it are gone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch

from tensorplay_torch._private import dispatch_keys, required

from .storages import Aliases, Watched

__all__ = ["Arena", "Scope"]

CANDIDATES = 16
"""How many storages of the right size are looked at before a new one is made."""


class Scope:
    """Storages whose work runs equally often: those of a graph's top level, or of one body.

    The body of a loop may overwrite only what it has itself written before, in the same run.
    """

    def __init__(self) -> None:
        self.reusable: defaultdict[int, deque[Watched]] = defaultdict(deque)

    def absorb(self, body: Scope) -> None:
        """Takes over the storages of a body that is complete."""
        for nbytes, storages in body.reusable.items():
            self.reusable[nbytes].extend(storages)


class Arena:
    """See the module.

    Args:
        reuse_from: Storages of fewer bytes are not reused: that costs more than they do.

    Attributes:
        scope: Storages of the top level, of every graph that shares the arena.
        aliases: The tensors by which programs hold them.
        peak_bytes: The most that ``allocated`` came to, at the end of a capture.
        apart: While entered no graph runs in its memory.
    """

    def __init__(self, reuse_from: int = 1024) -> None:
        self.scope = Scope()
        self.aliases = Aliases()
        self.peak_bytes = 0
        self.apart: Callable[[], AbstractContextManager[None]] = nullcontext
        self._reuse_from = reuse_from
        self._storages: list[Watched] = []

    def allocate(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, scope: Scope
    ) -> torch.Tensor:
        """A tensor for captured work to fill, poisoned until it has."""
        nbytes = _extent(size, stride) * dtype.itemsize
        if scope.reusable.get(nbytes):
            made = torch.empty(0, dtype=dtype)
            # A graph that another thread replays may be using what is reused. Modes that the user
            # has on are left out: no code of theirs is to run, and perhaps wait, in here.
            with self.apart(), _modeless()():
                storage = self._unused(scope, nbytes)
                if storage is not None:
                    made.set_(storage, 0, tuple(size), tuple(stride))
                    poison(made)
                    return made
        made = torch.empty_strided(size, stride, dtype=dtype)
        if nbytes:
            watched = Watched(made)
            self._storages.append(watched)
            if nbytes >= self._reuse_from:
                scope.reusable[nbytes].append(watched)
        poison(made)
        return made

    def addresses(self) -> set[int]:
        """Where its storages are that anything holds."""
        storages = [one.storage() for one in self._storages]
        return {one.data_ptr() for one in storages if one is not None}

    @property
    def reserved(self) -> list[int]:
        """Sizes in bytes of the storages that anything holds."""
        self._storages = [one for one in self._storages if one.storage() is not None]
        return [one.nbytes for one in self._storages]

    @property
    def allocated(self) -> list[int]:
        """Sizes in bytes of those that something beside the programs holds."""
        return [one.nbytes for one in self._storages if self._in_use(one)]

    def settle(self) -> None:
        """A capture has ended: takes stock."""
        self.aliases.prune()
        self.peak_bytes = max(self.peak_bytes, sum(self.allocated))

    def _unused(self, scope: Scope, nbytes: int) -> torch.UntypedStorage | None:
        candidates = scope.reusable.get(nbytes)
        if not candidates:
            return None
        for _ in range(min(CANDIDATES, len(candidates))):
            candidate = candidates[0]
            if candidate.nbytes != nbytes:  # Gone, or resized meanwhile.
                candidates.popleft()
                continue
            candidates.rotate(-1)
            if not self._in_use(candidate):
                return candidate.storage()
        return None

    def _in_use(self, storage: Watched) -> bool:
        return storage.used_beside(self.aliases.count(storage.key))


@cache
def _modeless() -> Callable[[], AbstractContextManager[Any]]:
    included, _, below_autograd = dispatch_keys()
    return partial(required("force_dispatch_keys", "capturing"), included, below_autograd)


def poison(tensor: torch.Tensor) -> None:
    """Fills it with NaN, integers with the most they hold: with what hardly is a result."""
    dtype = tensor.dtype
    if dtype is torch.bool:
        tensor.fill_(True)
    elif dtype.is_floating_point or dtype.is_complex:
        if dtype.itemsize == 1:
            tensor.view(torch.uint8).fill_(255)
        else:
            tensor.fill_(float("nan"))
    else:
        tensor.fill_(torch.iinfo(dtype).max)


def _extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last."""
    extent = 1
    for length, step in zip(size, stride, strict=True):
        if length == 0:
            return 0
        extent += (length - 1) * step
    return extent
