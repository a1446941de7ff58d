"""Pools as torch knows them: an id that its allocator serves captures from, on one device."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch

from tensorplay_core.protocols import Pool
from tensorplay_torch._private import PRIVATE, required

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
    "release_bodies",
    "routed",
    "routed_body",
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
        self._captures: defaultdict[Native, int] = defaultdict(int)
        self.spoilt = self.tied = self._released = False
        self.drawn = Ranges()

    def __repr__(self) -> str:
        return f"<torch pool {self.id} on {self.device}>"

    def draw(self) -> Native:
        """A native id that nobody has, for what it allocates apart."""
        native = new_native()
        self.drawn.add(native[1])
        return native

    def begin(self) -> Native:
        """The id that a capture which begins now allocates under; counts the capture."""
        assert self.native is not None, "pools of the CPU have no captures of torch's"
        if self.spoilt:
            last, self.last = self.last, None
            if last is not None:
                last.reset()
            self.former.add(self.native)
            self.native, self.spoilt = self.draw(), False
        self._captures[self.native] += 1
        self.used = True
        return self.native

    def end(self, graph: torch.cuda.CUDAGraph, native: Native) -> None:
        """A graph of torch's, captured under ``native``, is not needed any more.

        The last one stays until the pool is released: once all captures under an id are gone torch
        refuses it to further ones, as long as it holds memory for it.
        """
        self._captures[native] -= 1
        others = self._captures[native] or native != self.native or self.spoilt
        if others or self.owner is not None or self._released:
            graph.reset()
            return
        last, self.last = self.last, graph
        if last is not None:
            last.reset()

    def lose(self) -> None:
        """A capture into it broke, and its share was given back.

        torch goes on taking it for under way where memory of the host is concerned, and would
        refuse the id to the next.
        """
        if self.native is not None:
            self._captures[self.native] -= 1
        self.spoilt = True

    def release(self) -> torch.cuda.CUDAGraph | None:
        """Nobody captures into it any more; returns the last graph, if it is here to be reset."""
        self._released = True
        last, self.last = self.last, None
        return last


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
        """The last graph let go of ``pool``."""
        last = pool.release()
        if last is not None and not self.spares.keep(pool, last):
            last.reset()
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


@contextmanager
def routed(pool: TorchPool, native: Native, begun: Begun) -> Iterator[None]:
    """Allocations of the stream current at entry come from ``native`` while entered.

    It goes by stream, not by thread, because the autograd engine allocates from threads of its
    own. Each entry counts in ``begun``, for ``release_bodies`` to give back.
    """
    with _routed("begin_allocate_stream", pool, native, begun):
        yield


@contextmanager
def routed_body(pool: TorchPool, natives: tuple[Native, Native], begun: Begun) -> Iterator[None]:
    """As ``routed``, from the first of two ids, for the body of a conditional.

    What this thread allocates on other streams, forked inside the body, comes from the second:
    torch would take it for eager work and hand the memory to others.
    """
    by_stream, by_thread = natives
    with (
        _routed("begin_allocate_stream", pool, by_stream, begun),
        _routed("begin_allocate_thread", pool, by_thread, begun),
    ):
        yield


@contextmanager
def _routed(how: str, pool: TorchPool, native: Native, begun: Begun) -> Iterator[None]:
    index = index_of(pool.device)
    begin = required(how, "routing allocations")
    end = required("end_allocate", "routing allocations")
    begin(index, native)
    begun[native] += 1
    pool.used = True
    if native != pool.native:
        pool.bodies[native] += 1
    try:
        yield
    finally:
        end(index, native)


def release_bodies(pool: TorchPool, begun: Begun) -> None:
    """Gives back what ``routed`` began; the memory returns with the last tensor in it."""
    if not begun:
        return
    release = PRIVATE["release_pool"].value
    if release is not None:
        for native, times in begun.items():
            for _ in range(times):
                release(index_of(pool.device), native)
    for native, times in begun.items():
        pool.bodies[native] -= times
        if pool.bodies[native] <= 0:
            del pool.bodies[native]
    begun.clear()


def give_back(pool: TorchPool) -> None:
    """Gives back one capture's share of ``pool``."""
    release = PRIVATE["release_pool"].value
    if release is not None:
        release(index_of(pool.device), pool.native)


def abandon(pool: TorchPool) -> None:
    """Ends what a capture that torch failed to end left begun in ``pool``."""
    index = index_of(pool.device)
    end = PRIVATE["end_allocate"].value
    if end is None:
        return
    try:
        end(index, pool.native)
    except RuntimeError:
        return  # torch had ended it by itself, and then gave it back as well.
    give_back(pool)


def _identity(token: object) -> tuple[object, object]:
    """``(id, object that keeps its memory)``."""
    if isinstance(token, TorchPool):
        return token.id, token.owner
    if isinstance(token, torch.cuda.MemPool):
        return tuple(token.id), token
    if isinstance(token, torch.cuda.CUDAGraph):
        return tuple(token.pool()), token
    return token, None
