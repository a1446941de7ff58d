"""Hooks of a pool: where the memory of captured work comes from."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tensorplay_core.protocols import Capture, Device, Pool, PoolStatistics

from .markers import hookspec


@hookspec(firstresult=True)
def tensorplay_pool_create(device: Device) -> Pool:
    """A fresh, empty, private pool on ``device``."""


@hookspec(firstresult=True)
def tensorplay_pool_resolve(token: object, device: Device) -> Pool:
    """The pool that ``token`` names: an id given out before, or the framework's own pool object.

    Raises PoolMismatch for a token of another driver or of another device.
    """


@hookspec(firstresult=True)
def tensorplay_pool_route(pool: Pool, capture: Capture) -> AbstractContextManager[None]:
    """While entered, allocations of the capture's stream come from ``pool``."""


@hookspec(firstresult=True)
def tensorplay_pool_statistics(pool: Pool) -> PoolStatistics:
    """Memory of the pool now."""


@hookspec(firstresult=True)
def tensorplay_pool_release(pool: Pool) -> None:
    """The last graph let go. Memory goes back when the last live allocation is gone too."""
