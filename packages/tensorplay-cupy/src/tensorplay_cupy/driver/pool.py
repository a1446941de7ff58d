"""Hooks of a pool: the CUDA driver's pools, which CuPy allocates from inside captures."""

from __future__ import annotations

from contextlib import AbstractContextManager

import cupy

from tensorplay_core.errors import PoolMismatch
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import Device as DeviceName
from tensorplay_core.protocols import Pool, PoolStatistics
from tensorplay_cupy.captures import CupyCapture

from .device import Device

__all__ = ["Pools"]


class Pools(Device):
    """The pool noun."""

    @hookimpl
    def tensorplay_pool_create(self, device: DeviceName) -> Pool:
        """A fresh pool. It takes no memory until captured work allocates."""
        return self.base.runtime.pool_create(device)

    @hookimpl
    def tensorplay_pool_resolve(self, token: object, device: DeviceName) -> Pool:
        """The pool of an id given out before.

        Raises:
            PoolMismatch: It names none here. A ``cupy.cuda.MemoryPool`` is refused by name: it
                hands memory that a graph replays in to whoever asks next.
        """
        if isinstance(token, cupy.cuda.MemoryPool | cupy.cuda.MemoryAsyncPool):
            raise PoolMismatch(
                doing="sharing",
                subject=f"a cupy.cuda.{type(token).__name__}",
                met="eager work allocates from it too, and would be handed the graph's memory",
                remedy="Pass None, or an id from graph_pool_handle(): such a pool serves graphs "
                "alone.",
            )
        return self.base.runtime.pool_resolve(token, device)

    @hookimpl
    def tensorplay_pool_route(
        self, pool: Pool, capture: CupyCapture
    ) -> AbstractContextManager[None]:
        """While entered, captured work allocates from ``pool``."""
        return self.base.runtime.pool_route(pool, capture.inner)

    @hookimpl
    def tensorplay_pool_statistics(self, pool: Pool) -> PoolStatistics:
        """Memory of the pool now, in bytes."""
        return self.base.runtime.pool_statistics(pool)

    @hookimpl
    def tensorplay_pool_release(self, pool: Pool) -> None:
        """The last graph let go: memory goes back, that of live arrays when these are gone."""
        self.base.runtime.pool_release(pool)
