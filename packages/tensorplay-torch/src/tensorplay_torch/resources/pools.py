"""Pools as torch knows them: an id that its allocator serves captures from, on one device."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch

from tensorplay_core.protocols import Pool
from tensorplay_torch._private import PRIVATE

from .arena import Arena
from .devices import index_of
from .ids import Gone, Native, Ranges, is_native, mismatch

if TYPE_CHECKING:
    from .streams import Lane

__all__ = [
    "Begun",
    "Native",
    "NoSpares",
    "PoolRegistry",
    "Spares",
    "TorchPool",
    "abandon",
    "give_back",
    "new_native",
]


Begun: TypeAlias = defaultdict[Native, int]
"""How often a capture began to allocate from which native ids."""


class TorchPool:
    """One pool of torch's.

    Attributes:
        id: What users pass around; on CUDA torch's own pair of ints.
        device: The device of its memory.
        native: The id that torch's allocator is given, None on the CPU.
        owner: The torch object that the pool belongs to, None if it is known by its id alone.
        stream: The stream that captures into it run on, once there is one.
        lanes: The streams that were made for it, which it gives back: 0 is that of its captures,
            1 that of their bodies, 2 that of bodies in these ...
        warned: A capture on another stream was warned about.
        bodies: How often conditional bodies began to allocate from which native ids.
        host: On the CPU, the host driver's pool that stands for it, once a capture needs one.
        arena: On the CPU, where captures into it have their outputs.
        peak: The most bytes that a reading found.
        former: Native ids that it had before.
        used: torch has heard of its native id.
        last: A graph that only keeps the native id good for captures.
        spoilt: A capture under the native id broke: it is good for no other.
        tied: ``last`` keeps generators of the user's too.
        unrouted: Torch serves a broken capture from it no more, which has its share still.
        drawn: Further native ids that were drawn for it.
    """

    def __init__(
        self, id: Hashable, device: torch.device, native: Native | None, owner: object = None
    ) -> None:
        self.id, self.device, self.native, self.owner = id, device, native, owner
        self.stream: torch.cuda.Stream | None = None
        self.lanes: dict[int, Lane] = {}
        self.warned = False
        self.bodies: Begun = defaultdict(int)
        self.host: Pool | None = None
        self.arena: Arena | None = None if device.type == "cuda" else Arena()
        self.peak = 0
        self.former: set[Native] = set()
        self.used = False
        self.last: torch.cuda.CUDAGraph | None = None
        self._captures: defaultdict[Native, set[torch.cuda.CUDAGraph]] = defaultdict(set)
        self.spoilt = self.tied = self.unrouted = self._released = False
        self.drawn = Ranges()

    def __repr__(self) -> str:
        return f"<torch pool {self.id} on {self.device}>"

    def draw(self) -> Native:
        """A native id that nobody has, for what it allocates apart."""
        native = new_native()
        self.drawn.add(native[1])
        return native

    def begin(self, graph: torch.cuda.CUDAGraph) -> Native:
        """The id that a capture which begins now allocates under; counts the capture.

        This, ``end``, ``forgo`` and ``lose`` are idempotent: an interrupt may have them called
        again.
        """
        assert self.native is not None, "pools of the CPU have no captures of torch's"
        if self.spoilt:
            last, self.last = self.last, None
            if last is not None:
                last.reset()
            self.former.add(self.native)
            self.native, self.spoilt = self.draw(), False
        self._captures[self.native].add(graph)
        self.used = True
        return self.native

    def end(self, graph: torch.cuda.CUDAGraph, native: Native) -> None:
        """A graph of torch's, captured under ``native``, is not needed any more.

        The last one stays until the pool is released: once all captures under an id are gone torch
        refuses it to further ones, as long as it holds memory for it.
        """
        self._captures[native].discard(graph)
        others = self._captures[native] or native != self.native or self.spoilt
        if graph is self.last:
            return
        if others or self.owner is not None or self._released:
            graph.reset()
            return
        last, self.last = self.last, graph
        if last is not None:
            last.reset()

    def forgo(self, graph: torch.cuda.CUDAGraph) -> None:
        """A capture that was to begin did not."""
        for captures in self._captures.values():
            captures.discard(graph)

    def lose(self, graph: torch.cuda.CUDAGraph) -> None:
        """A capture into it broke, and its share was given back.

        torch goes on taking it for under way where memory of the host is concerned, and would
        refuse the id to the next.
        """
        if self.native is not None:
            self._captures[self.native].discard(graph)
        self.spoilt = True

    def release(self) -> torch.cuda.CUDAGraph | None:
        """Nobody captures into it any more; returns the last graph, if it is here to be reset."""
        self._released = True
        return self.last


class Spares(Protocol):
    """Memory of pools that ended, for pools to come."""

    def keep(self, pool: TorchPool, last: torch.cuda.CUDAGraph) -> bool:
        """Takes what ``pool`` has, with the graph that keeps it; False if it does not want it."""
        ...

    def give(self, pool: TorchPool) -> None:
        """Gives a new pool what was taken, if there is anything."""
        ...


class NoSpares:
    """Keeps nothing."""

    def keep(self, pool: TorchPool, last: torch.cuda.CUDAGraph) -> bool:
        """False."""
        return False

    def give(self, pool: TorchPool) -> None:
        """Nothing."""


class PoolRegistry:
    """The pools that somebody holds, by id.

    Attributes:
        spares: What becomes of pools that nobody holds any more.
    """

    def __init__(self) -> None:
        self._pools: weakref.WeakValueDictionary[Hashable, TorchPool] = (
            weakref.WeakValueDictionary()
        )
        # torch refuses an id whose captures are all gone while tensors still live in its memory,
        # so one that was given back stands for a new native id when it is taken up again.
        self._spent = Gone()
        # Ids that nobody holds, by device.
        self._gone: dict[torch.device, Gone] = {}
        self._ended: deque[TorchPool] = deque()
        self._remembering = False
        self._serials = itertools.count(1)
        self.spares: Spares = NoSpares()
        # Reentrant, because a finaliser that ends a graph may run in the midst of its holder.
        self._lock = threading.RLock()

    def create(self, device: torch.device) -> TorchPool:
        """A pool that nothing is in yet."""
        if device.type == "cuda":
            id = new_native()
            pool = TorchPool(id, device, id)
            self.spares.give(pool)
            return self._keep(pool)
        return self._keep(TorchPool(("cpu", next(self._serials)), device, None))

    def resolve(self, token: object, device: torch.device) -> TorchPool:
        """The pool that ``token`` names: an id, a ``torch.cuda.MemPool`` or ``CUDAGraph``.

        Raises:
            PoolMismatch: It names none, or one of another device.
        """
        id, owner = _identity(token)
        known = self._pools.get(id) if isinstance(id, Hashable) else None
        with self._lock:
            former = [where for where, gone in self._gone.items() if id in gone]
            spent = id in self._spent
        where = known.device if known is not None else (former or [device])[0]
        if where != device:
            raise mismatch(token, f"it is on {where}", device)
        if known is not None:
            return known
        if device.type == "cuda" and is_native(id):
            native = new_native() if spent else id
            return self._keep(TorchPool(id, device, native, owner))
        if device.type == "cpu" and former and isinstance(id, Hashable):
            return self._keep(TorchPool(id, device, None))
        raise mismatch(token, "torch knows no such pool there", device)

    def forget(self, pool: TorchPool) -> None:
        """The last graph let go of ``pool``. Idempotent."""
        last = pool.release()
        if last is not None and not self.spares.keep(pool, last):
            last.reset()
        pool.last = None
        with self._lock:
            self._pools.pop(pool.id, None)
        if pool.owner is None:
            self._ended.append(pool)
            self._remember()

    def _remember(self) -> None:
        """Notes the ids of pools that ended."""
        with self._lock:
            if self._remembering:
                return  # A finaliser ended one in the midst of this, which goes on with it.
            self._remembering = True
            try:
                while self._ended:
                    pool = self._ended.popleft()
                    # Nobody was given the others; with them what is remembered has fewer gaps.
                    for id in (pool.id, *((0, number) for number in pool.drawn)):
                        self._gone.setdefault(pool.device, Gone()).add(id)
                        if pool.used:
                            self._spent.add(id)
            finally:
                self._remembering = False

    def _keep(self, pool: TorchPool) -> TorchPool:
        with self._lock:
            return self._pools.setdefault(pool.id, pool)


def new_native() -> Native:
    """An id that torch's CUDA allocator has not given out before."""
    first, second = torch.cuda.graph_pool_handle()
    return (first, second)


def give_back(pool: TorchPool) -> None:
    """Gives back one capture's share of ``pool``."""
    release = PRIVATE["release_pool"].value
    if release is not None:
        release(index_of(pool.device), pool.native)


def abandon(pool: TorchPool) -> None:
    """Ends what a capture that torch failed to end left begun in ``pool``.

    An interrupt may have this called again: torch's calls are made once each.
    """
    index, native = index_of(pool.device), pool.native
    end, release = PRIVATE["end_allocate"].value, PRIVATE["release_pool"].value
    if end is None:
        return
    if not pool.unrouted:
        pool.unrouted = True
        try:
            end(index, native)
        except RuntimeError:
            pool.unrouted = False
            return  # torch had ended it by itself, and then gave it back as well.
    pool.unrouted = False
    if release is not None:
        release(index, native)


def _identity(token: object) -> tuple[object, object]:
    """``(id, object that keeps its memory)``."""
    if isinstance(token, TorchPool):
        return token.id, token.owner
    if isinstance(token, torch.cuda.MemPool):
        return tuple(token.id), token
    if isinstance(token, torch.cuda.CUDAGraph):
        return tuple(token.pool()), token
    return token, None
