"""Pools: private memory for captured work, held until the last graph and array are gone."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tensorplay_core.errors import PoolMismatch
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import PoolStatistics

from .arena import Arena
from .device import Device
from .memory import PoolBlock

if TYPE_CHECKING:
    from .captures import CudaCapture
    from .contexts import CudaDevice
    from .memory import Memory
    from .streams import Stream

__all__ = ["CudaPool", "PoolId", "Pools"]

# Of the process, not of a driver object: an id of another driver object is never mistaken.
_serials = itertools.count(1)


class PoolId(NamedTuple):
    """The public name of a pool."""

    driver: str
    device: int
    serial: int


class CudaPool:
    """Segments of device memory, and what of them is free.

    Attributes:
        id: Its public name.
        device: The GPU its memory is on.
        stream: The side stream of captures into it, once one was asked for.
    """

    def __init__(self, memory: Memory, identity: PoolId, device: CudaDevice) -> None:
        self.id, self.device = identity, device
        self.stream: Stream | None = None
        about = f"pool {identity.serial} on {device}"
        # The arena outlives the pool as long as blocks of it do.
        self.arena = Arena(
            lambda nbytes: memory.take(nbytes, device, about=about),
            lambda address, nbytes: memory.give(address, nbytes, device),
        )
        # A pool that nobody released, and nobody can any more.
        weakref.finalize(self, self.arena.release).atexit = False

    def __repr__(self) -> str:
        return f"<pool {self.id.serial} on {self.device}>"

    def block(self, nbytes: int, capture: CudaCapture, stream: int) -> PoolBlock:
        """Memory for work of ``capture`` on ``stream``, its own or one forked from it.

        Raises:
            PoolExhausted: The device has no memory left.
        """
        key = capture.key if stream == capture.stream else stream
        block = self.arena.allocate(nbytes, key)
        return PoolBlock(self.arena, block, capture.root.serial)


class Pools(Device):
    """The device, with pools."""

    def __init__(self, driver: object = None) -> None:
        super().__init__(driver)
        self._pools: weakref.WeakValueDictionary[PoolId, CudaPool] = weakref.WeakValueDictionary()
        self._issued: set[int] = set()

    @hookimpl
    def tensorplay_pool_create(self, device: CudaDevice) -> CudaPool:
        """A fresh pool. It takes no memory until work allocates from it."""
        identity = PoolId("cuda", int(device), next(_serials))
        self._issued.add(identity.serial)
        return self._pool(identity)

    @hookimpl
    def tensorplay_pool_resolve(self, token: object, device: CudaDevice) -> CudaPool:
        """The pool of an id given out before, or the pool itself."""
        if isinstance(token, CudaPool):
            token = token.id
        if not isinstance(token, PoolId) or token.serial not in self._issued:
            raise PoolMismatch(
                doing="resolving",
                subject=f"pool {token!r}",
                met="it is no pool of this driver",
                remedy="Pass None, an id from graph_pool_handle(), or a graph's pool_id.",
            )
        if token.device != int(device):
            raise PoolMismatch(
                doing="resolving",
                subject=f"pool {token!r}",
                met=f"its memory is on cuda:{token.device}, the capture is on {device}",
                remedy=f"Make a pool for this device: graph_pool_handle({str(device)!r}).",
            )
        return self._pool(token)

    def _pool(self, identity: PoolId) -> CudaPool:
        found = self._pools.get(identity)
        if found is None:
            device = self.find_device(identity.device)
            found = self._pools[identity] = CudaPool(self.memory, identity, device)
        found.arena.revive()
        return found

    @hookimpl
    @contextmanager
    def tensorplay_pool_route(self, pool: CudaPool, capture: CudaCapture) -> Iterator[None]:
        """While entered, work of this capture allocates from ``pool``."""
        capture.pools.append(pool)
        try:
            yield
        finally:
            capture.pools.remove(pool)

    @hookimpl
    def tensorplay_pool_statistics(self, pool: CudaPool) -> PoolStatistics:
        """Memory of the pool now, in bytes."""
        return pool.arena.statistics()

    @hookimpl
    def tensorplay_pool_release(self, pool: CudaPool) -> None:
        """The last graph let go: segments go back, those with live arrays when these are gone."""
        pool.stream = None
        pool.arena.release()
