"""Pools as torch knows them: an id that its allocator serves captures from, on one device."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import sys
import threading
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import torch

from tensorplay_core.errors import PoolMismatch
from tensorplay_core.protocols import Pool, PoolStatistics
from tensorplay_core.runtime import Runtime

from ._private import PRIVATE, required
from .arena import Arena
from .devices import index_of

if TYPE_CHECKING:
    from .streams import Lane

__all__ = [
    "Native",
    "PoolRegistry",
    "Segments",
    "TorchPool",
    "abandon",
    "give_back",
    "new_native",
    "read_statistics",
    "release_bodies",
    "routed",
    "routed_body",
]

Native: TypeAlias = tuple[int, int]
_SNAPSHOT = (
    {"include_traces": False}
    if "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters
    else {}
)


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
        peak: The most bytes that ``read_statistics`` found.
    """

    def __init__(
        self, id: Hashable, device: torch.device, native: Native | None, owner: object = None
    ) -> None:
        self.id, self.device, self.native, self.owner = id, device, native, owner
        self.stream: torch.cuda.Stream | None = None
        self.lanes: dict[int, Lane] = {}
        self.warned = False
        self.bodies: Counter[Native] = Counter()
        self.host: Pool | None = None
        self.arena: Arena | None = None if device.type == "cuda" else Arena()
        self.peak = 0
        self._hold: weakref.finalize[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"<torch pool {self.id} on {self.device}>"

    def hold(self) -> None:
        """Keeps torch from giving the id up while nothing is captured into it, until ``let_go``.

        torch refuses an id whose captures are all gone while tensors still live in its memory; a
        pool that is held between two captures must serve the second.
        """
        begin = PRIVATE["begin_allocate_thread"].value
        end, release = PRIVATE["end_allocate"].value, PRIVATE["release_pool"].value
        if self._hold is not None or self.owner is not None:
            return
        if begin is None or end is None or release is None:
            return
        index = index_of(self.device)
        begin(index, self.native)
        end(index, self.native)
        self._hold = weakref.finalize(self, release, index, self.native)
        self._hold.atexit = False

    def let_go(self) -> None:
        """Ends ``hold``. Idempotent."""
        if self._hold is not None:
            self._hold()

    def on_host(self, host: Runtime) -> Pool:
        """The host driver's pool that stands for it: graphs that share it take turns by that."""
        if self.host is None:
            self.host = host.pool_create(host.resolve_device())
        return self.host


class PoolRegistry:
    """The pools that somebody holds, by id."""

    def __init__(self) -> None:
        self._pools: weakref.WeakValueDictionary[Hashable, TorchPool] = (
            weakref.WeakValueDictionary()
        )
        # torch refuses an id whose captures are all gone while tensors still live in its memory,
        # so one that was given back stands for a new native id when it is taken up again.
        self._spent: set[Hashable] = set()
        self._serials = itertools.count(1)
        self._lock = threading.Lock()

    def create(self, device: torch.device) -> TorchPool:
        """A pool that nothing is in yet."""
        if device.type == "cuda":
            native = new_native()
            return self._keep(TorchPool(native, device, native))
        return self._keep(TorchPool(("cpu", next(self._serials)), device, None))

    def resolve(self, token: object, device: torch.device) -> TorchPool:
        """The pool that ``token`` names: an id, a ``torch.cuda.MemPool`` or ``CUDAGraph``.

        Raises:
            PoolMismatch: It names none, or one of another device.
        """
        id, owner = _identity(token)
        known = self._pools.get(id) if isinstance(id, Hashable) else None
        if known is not None:
            if known.device != device:
                raise _mismatch(token, f"it is on {known.device}", device)
            return known
        if device.type == "cuda" and _is_native(id):
            native = new_native() if id in self._spent else id
            return self._keep(TorchPool(id, device, native, owner))
        if device.type == "cpu" and id in self._spent:
            return self._keep(TorchPool(id, device, None))
        raise _mismatch(token, "torch knows no such pool there", device)

    def forget(self, pool: TorchPool) -> None:
        """The last graph let go of ``pool``."""
        pool.let_go()
        with self._lock:
            self._pools.pop(pool.id, None)
            if pool.owner is None:
                self._spent.add(pool.id)

    def _keep(self, pool: TorchPool) -> TorchPool:
        with self._lock:
            return self._pools.setdefault(pool.id, pool)


def new_native() -> Native:
    """An id that torch's CUDA allocator has not given out before."""
    first, second = torch.cuda.graph_pool_handle()
    return (first, second)


@contextmanager
def routed(pool: TorchPool, native: Native, begun: Counter[Native]) -> Iterator[None]:
    """Allocations of the stream current at entry come from ``native`` while entered.

    It goes by stream, not by thread, because the autograd engine allocates from threads of its
    own. Each entry counts in ``begun``, for ``release_bodies`` to give back.
    """
    with _routed("begin_allocate_stream", pool, native, begun):
        yield


@contextmanager
def routed_body(
    pool: TorchPool, natives: tuple[Native, Native], begun: Counter[Native]
) -> Iterator[None]:
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
def _routed(how: str, pool: TorchPool, native: Native, begun: Counter[Native]) -> Iterator[None]:
    index = index_of(pool.device)
    begin = required(how, "routing allocations")
    end = required("end_allocate", "routing allocations")
    begin(index, native)
    begun[native] += 1
    if native != pool.native:
        pool.bodies[native] += 1
    try:
        yield
    finally:
        end(index, native)


def release_bodies(pool: TorchPool, begun: Counter[Native]) -> None:
    """Gives back what ``routed`` began; the memory returns with the last tensor in it."""
    release = PRIVATE["release_pool"].value
    if release is not None:
        for native in begun.elements():
            release(index_of(pool.device), native)
    pool.bodies.subtract(begun)
    pool.bodies += Counter()  # Drops those that nothing is counted for any more.
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


def read_statistics(pool: TorchPool) -> PoolStatistics:
    """Memory of a pool now.

    On CUDA, what torch's allocator holds for the pool and for the bodies captured into it;
    ``peak_bytes`` is the most that a reading found. On the CPU, the storages of outputs of captured
    work: reserved are those that graphs or tensors hold, allocated those that tensors do, and
    ``peak_bytes`` is the most at the end of a capture or at a reading.
    """
    if pool.arena is not None:
        reserved, allocated = pool.arena.reserved, pool.arena.allocated
        pool.peak = max(pool.peak, pool.arena.peak_bytes, sum(allocated))
        return PoolStatistics(sum(reserved), sum(allocated), pool.peak, len(allocated))
    if pool.native is None or not torch.cuda.is_initialized():
        return PoolStatistics(0, 0, 0, 0)
    index, natives = index_of(pool.device), {pool.native, *pool.bodies}
    segments = [
        segment
        for segment in _segments()
        if segment["device"] == index and segment["segment_pool_id"] in natives
    ]
    allocated = sum(segment["allocated_size"] for segment in segments)
    pool.peak = max(pool.peak, allocated)
    return PoolStatistics(
        reserved_bytes=sum(segment["total_size"] for segment in segments),
        allocated_bytes=allocated,
        peak_bytes=pool.peak,
        allocation_count=sum(
            block["state"] == "active_allocated"
            for segment in segments
            for block in segment["blocks"]
        ),
    )


class Segments:
    """What a pool holds now, and what was allocated for bodies from ``begun``, as addresses."""

    def __init__(self, pool: TorchPool, begun: Iterable[Native]) -> None:
        index, natives = index_of(pool.device), {pool.native, *begun}
        spans = sorted(
            (int(segment["address"]), int(segment["address"] + segment["total_size"]))
            for segment in _segments()
            if segment["device"] == index and segment["segment_pool_id"] in natives
        )
        self._starts = [start for start, _ in spans]
        self._stops = [stop for _, stop in spans]

    def __contains__(self, address: object) -> bool:
        """True if the address is in memory of the pool."""
        if not isinstance(address, int):
            return False
        place = bisect_right(self._starts, address) - 1
        return place >= 0 and address < self._stops[place]


def _segments() -> list[dict[str, Any]]:
    """What torch's allocator holds on all devices.

    It is asked for everything, not for one pool: torch up to 2.14 drops references to the numbers
    of a pool's id that it was only lent, so that asking often enough for one ends the process
    (pytorch pull request 196366).
    """
    if sys.version_info < (3, 12):
        # Asked for everything it drops these: later Pythons never free them, here it gets its own.
        for number in (0, 0, False):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(number))
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot(**_SNAPSHOT)
    return segments


def _identity(token: object) -> tuple[object, object]:
    """``(id, object that keeps its memory)``."""
    if isinstance(token, TorchPool):
        return token.id, token.owner
    if isinstance(token, torch.cuda.MemPool):
        return tuple(token.id), token
    if isinstance(token, torch.cuda.CUDAGraph):
        return tuple(token.pool()), token
    return token, None


def _is_native(id: object) -> TypeGuard[Native]:
    return (
        isinstance(id, tuple)
        and len(id) == 2
        and all(isinstance(part, int) and part >= 0 for part in id)
        and (id[0] == 0) != (id[1] == 0)
    )


def _mismatch(token: object, met: str, device: torch.device) -> PoolMismatch:
    return PoolMismatch(
        doing="sharing",
        subject=f"pool {token!r}",
        met=met,
        remedy=f"Pass None, an id from graph_pool_handle({str(device)!r}), a captured graph, or "
        "a torch.cuda.MemPool of that device.",
    )
