"""Pools of host memory: private, shared by id, released when the last graph lets go."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from tensorplay_core.errors import PoolError, PoolMismatch
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import PoolStatistics

from .capture import Capture
from .device import HOST, Device
from .memory import Pool, PoolId

__all__ = ["Pools"]

_owners = itertools.count(1)


class Pools(Device):
    """The pools this driver object made, until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self._owner = next(_owners)
        self._serials = itertools.count(1)
        # Of a pool that nobody holds the id is enough: it begins anew, empty.
        self._pools: weakref.WeakValueDictionary[PoolId, Pool] = weakref.WeakValueDictionary()

    @hookimpl
    def tensorplay_pool_create(self, device: str) -> Pool:
        """A fresh pool."""
        return self._pool(PoolId(HOST, self._owner, next(self._serials)))

    def _pool(self, identity: PoolId) -> Pool:
        pool = self._pools[identity] = Pool(identity, self._ledger)
        return pool

    @hookimpl
    def tensorplay_pool_resolve(self, token: object, device: str) -> Pool:
        """The pool of an id; one that was released meanwhile begins anew, empty."""
        identity = token.id if isinstance(token, Pool) else token
        if not isinstance(identity, PoolId) or identity.owner != self._owner:
            raise PoolMismatch(
                doing="sharing",
                subject=f"pool {token!r}",
                met="it is none that this host driver gave out",
                remedy="Pass an id from graph_pool_handle() or the pool_id of a graph of the host "
                "driver, or None for a private pool.",
            )
        return self._pools.get(identity) or self._pool(identity)

    def _own_pool(self, pool: object, doing: str) -> Pool:
        if not isinstance(pool, Pool) or pool.id.owner != self._owner:
            raise PoolMismatch(
                doing=doing,
                subject=f"pool {pool!r}",
                met="it is no pool of this host driver",
                remedy="Pass what pool_create or pool_resolve returned.",
            )
        if pool.released:
            raise PoolError(
                doing=doing,
                subject=repr(pool),
                met="its last graph let go of it",
                remedy="Resolve its id again, or create another pool.",
            )
        return pool

    @hookimpl
    @contextmanager
    def tensorplay_pool_route(self, pool: Pool, capture: Capture) -> Iterator[None]:
        """While entered, buffers made on the capture's streams come from ``pool``."""
        pool = self._own_pool(pool, "routing allocations to")
        before = capture.pool
        capture.allocate_from(pool)
        try:
            yield
        finally:
            capture.pool = before

    @hookimpl
    def tensorplay_pool_statistics(self, pool: Pool) -> PoolStatistics:
        """Memory of the pool now; blocks are counted in multiples of 64 bytes."""
        return pool.statistics()

    @hookimpl
    def tensorplay_pool_release(self, pool: Pool) -> None:
        """Each segment goes back once the last buffer in it is gone."""
        self._pools.pop(pool.id, None)
        pool.release()
