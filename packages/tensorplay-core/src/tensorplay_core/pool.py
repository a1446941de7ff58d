"""Memory pools as graphs share them: named by an id, counted by the graphs that hold them."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from . import reclaim
from .errors import PoolMismatch
from .protocols import Device, Pool, PoolStatistics
from .runtime import Runtime, select

__all__ = ["SharedPool", "acquire", "graph_pool_handle"]

_lock = threading.RLock()
_shared: dict[tuple[str, Hashable], SharedPool] = {}


class SharedPool:
    """One pool and how many graphs hold it. The last to let go gives it back to the driver."""

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self.runtime = runtime
        self.pool = pool
        self.holders = 0

    @property
    def id(self) -> Hashable:
        """What ``pool=`` takes."""
        return self.pool.id

    @property
    def device(self) -> Device:
        """The device of its memory."""
        return self.pool.device

    def statistics(self) -> PoolStatistics:
        """Memory of the pool now, in bytes."""
        return self.runtime.pool_statistics(self.pool)

    def release(self) -> None:
        """One holder lets go."""
        with _lock:
            self.holders -= 1
            if self.holders:
                return
        reclaim.dispose(self._retire)

    def _retire(self) -> None:
        with _lock:
            if self.holders:  # Somebody took it up again while the disposal was put off.
                return
            _shared.pop((self.runtime.name, self.id), None)
        self.runtime.pool_release(self.pool)


def graph_pool_handle(device: object = None, *, driver: str | None = None) -> Hashable:
    """An id of a fresh memory pool, for the ``pool`` argument of captures that are to share it.

    Captures that share a pool recycle each other's freed memory, so their graphs must be replayed
    in the order of capture and never at the same time. The id costs nothing until it is used.

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
    shared = SharedPool(runtime, runtime.pool_create(runtime.resolve_device(device)))
    with _lock:
        _shared[runtime.name, shared.id] = shared
    return shared.id


def acquire(runtime: Runtime, token: object, device: Device) -> SharedPool:
    """Holds the pool that ``token`` names, for one more graph.

    Args:
        runtime: The runtime of the capture.
        token: None for a private pool; an id; a graph that was captured; a framework's pool object.
        device: The device of the capture.

    Raises:
        PoolMismatch: The pool is another driver's or on another device, or it is no pool.
    """
    held = getattr(token, "_shared_pool", token)
    if isinstance(held, SharedPool):
        if held.runtime.name != runtime.name:
            raise _mismatch(token, f"it belongs to driver {held.runtime.name!r}", runtime.name)
        token = held.id
    if token is None:
        shared = SharedPool(runtime, runtime.pool_create(device))
    else:
        shared = _resolve(runtime, token, device)
    if shared.device != device:
        raise _mismatch(token, f"it is on {shared.device}, the capture on {device}", str(device))
    with _lock:
        shared = _shared.setdefault((runtime.name, shared.id), shared)
        shared.holders += 1
    return shared


def _resolve(runtime: Runtime, token: object, device: Device) -> SharedPool:
    try:
        known = _shared.get((runtime.name, token))
    except TypeError:  # A framework's pool object need not be hashable.
        known = None
    if known is not None:
        return known
    return SharedPool(runtime, runtime.pool_resolve(token, device))


def _mismatch(token: object, met: str, wanted: str) -> PoolMismatch:
    return PoolMismatch(
        doing="sharing",
        subject=f"pool {token!r}",
        met=met,
        remedy=f"Pass None, or an id from graph_pool_handle() of {wanted}.",
    )
