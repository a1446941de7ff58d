"""Pools of the host driver that stand for pools of torch's on the CPU."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from .bases import host_driver

if TYPE_CHECKING:
    from tensorplay_core.protocols import Pool
    from tensorplay_core.runtime import Runtime

    from .pools import TorchPool

__all__ = ["on_host"]

# Reentrant, because a signal handler may capture in the midst of its holder.
_lock = threading.RLock()


def on_host(pool: TorchPool, host: Runtime) -> Pool:
    """The host driver's pool that stands for ``pool``: graphs that share it take turns by that.

    So do captures that reuse memory of its arena.
    """
    with _lock:
        if pool.host is None:
            pool.host = host.pool_create(host.resolve_device(None))
            if pool.arena is not None:
                pool.arena.apart = partial(host_driver(host).apart, pool.host)
        return pool.host
