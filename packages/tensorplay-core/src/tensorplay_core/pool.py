"""Memory pools as graphs share them: named by an id, counted by the graphs that hold them."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from . import reclaim
from .errors import PoolMismatch
from .protocols import Device, Pool, PoolStatistics
from .runtime import Runtime, select

__all__ = ["SharedPool", "acquire", "graph_pool_handle"]

_lock = threading.RLock()
_shares: dict[tuple[str, Hashable], set[SharedPool]] = {}
"""Who holds which pool. A pool that nobody holds has no entry: its id is enough to begin anew."""


class SharedPool:
    """One holder's share in a pool. The last to be let go gives the pool back to the driver."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._pool: Pool | None = None
        self._key: tuple[str, Hashable] = (runtime.name, None)
        self._retired = False

    @property
    def pool(self) -> Pool:
        """The driver's pool."""
        assert self._pool is not None, "a share is taken before it is used"
        return self._pool

    @property
    def id(self) -> Hashable:
        """What ``pool=`` takes."""
        return self.pool.id

    @property
    def device(self) -> Device:
        """The device of its memory."""
        return self.pool.device

    @property
    def is_held(self) -> bool:
        """True if this share was not let go of."""
        return self in _shares.get(self._key, ())

    def statistics(self) -> PoolStatistics:
        """Memory of the pool now, in bytes."""
        return self.runtime.pool_statistics(self.pool)

    def take(self, pool: Pool) -> None:
        """Holds ``pool``."""
        with _lock:
            self._pool, self._key = pool, (self.runtime.name, pool.id)
            _shares.setdefault(self._key, set()).add(self)

    def release(self) -> None:
        """Lets go. Idempotent."""
        with _lock:
            if self._pool is None:
                return
            others = _shares.get(self._key, set())
            others.discard(self)
            if others:
                return
            _shares.pop(self._key, None)
        reclaim.dispose(self._retire)

    def _retire(self) -> None:
        with _lock:
            if self._key not in _shares and not self._retired:  # Else somebody took it up again.
                self.runtime.pool_release(self.pool)
                self._retired = True


def graph_pool_handle(device: object = None, *, driver: str | None = None) -> Hashable:
    """An id of a fresh memory pool, for the ``pool`` argument of captures that are to share it.

    Captures that share a pool recycle each other's freed memory, so their graphs must be replayed
    in the order of capture and never at the same time. The id is a name: no memory and no object
    stands behind it until a capture uses it, nor once the last graph and array are gone.

    Args:
        device: Device of the pool's memory; None is the current one.
        driver: Name of the driver; None chooses as ``select`` does.

    Raises:
        UnknownDriver: No such driver.
        DriverUnavailable: It cannot work here.
        UnsupportedByDriver: The driver has no pools.
        ArgumentError: No such device.
    """
    runtime = select(driver)
    pool = runtime.pool_create(runtime.resolve_device(device))
    # Nobody tells when an id is forgotten, so nothing may wait for its use.
    runtime.pool_release(pool)
    return pool.id


def acquire(
    runtime: Runtime, token: object, device: Device, share: SharedPool | None = None
) -> SharedPool:
    """Holds the pool that ``token`` names, for one more graph.

    Args:
        runtime: The runtime of the capture.
        token: None for a private pool; an id; a graph that was captured; a framework's pool object.
        device: The device of the capture.
        share: What is to hold it, for a caller who lets go of that even if this call is broken off.

    Raises:
        PoolMismatch: The pool is another driver's or on another device, or it is no pool.
    """
    share = share or SharedPool(runtime)
    held = getattr(token, "_shared_pool", token)
    if isinstance(held, SharedPool) and held.runtime.name != runtime.name:
        raise _mismatch(token, f"it belongs to driver {held.runtime.name!r}", runtime.name)
    with _lock:
        if token is None:
            pool = runtime.pool_create(device)
        elif isinstance(held, SharedPool):
            pool = held.pool if held.is_held else _resolve(runtime, held.id, device)
        else:
            pool = _resolve(runtime, token, device)
        if pool.device != device:
            raise _mismatch(token, f"it is on {pool.device}, the capture on {device}", str(device))
        share.take(pool)
    return share


def _resolve(runtime: Runtime, token: object, device: Device) -> Pool:
    try:
        known = _held(runtime, token)
    except TypeError:  # A framework's pool object need not be hashable.
        known = None
    if known is not None:
        return known
    pool = runtime.pool_resolve(token, device)
    return _held(runtime, pool.id) or pool


def _held(runtime: Runtime, identity: Any) -> Pool | None:
    holder = next(iter(_shares.get((runtime.name, identity), ())), None)
    return holder.pool if holder is not None else None


def _mismatch(token: object, met: str, wanted: str) -> PoolMismatch:
    return PoolMismatch(
        doing="sharing",
        subject=f"pool {token!r}",
        met=met,
        remedy=f"Pass None, or an id from graph_pool_handle() of {wanted}.",
    )
