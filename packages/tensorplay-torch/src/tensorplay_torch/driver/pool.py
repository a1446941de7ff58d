"""Pools: torch's own on CUDA, the host driver's with a count of storages on the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import PoolStatistics
from tensorplay_torch.cpu.bodies import CpuBody
from tensorplay_torch.cpu.capture import CpuCapture
from tensorplay_torch.cuda.bodies import CudaBody
from tensorplay_torch.cuda.capture import OpenCapture
from tensorplay_torch.cuda.spares import OneSpare
from tensorplay_torch.resources.hosting import on_host
from tensorplay_torch.resources.memory import read_statistics
from tensorplay_torch.resources.pools import PoolRegistry, TorchPool
from tensorplay_torch.resources.routing import routed

from .device import Device

if TYPE_CHECKING:
    import torch

__all__ = ["Pools"]


class Pools(Device):
    """The pool noun."""

    def __init__(self) -> None:
        super().__init__()
        self.pools = PoolRegistry()
        self.pools.spares = OneSpare()

    @hookimpl
    def tensorplay_pool_create(self, device: torch.device) -> TorchPool:
        """A pool that nothing is in yet; its id is torch's on CUDA."""
        return self.pools.create(device)

    @hookimpl
    def tensorplay_pool_resolve(self, token: object, device: torch.device) -> TorchPool:
        """The pool of an id, a ``torch.cuda.MemPool`` or a captured ``torch.cuda.CUDAGraph``."""
        return self.pools.resolve(token, device)

    @hookimpl
    def tensorplay_pool_route(
        self, pool: TorchPool, capture: OpenCapture | CudaBody | CpuCapture | CpuBody
    ) -> AbstractContextManager[None]:
        """Routes the stream that is current, on the CPU whatever is recorded."""
        if isinstance(capture, CpuCapture | CpuBody):
            assert pool.arena is not None, "core compares the devices of pools and captures"
            on_host(pool, self.bases("host"))
            return capture.root.recorder.routed(pool.arena)
        assert pool.native is not None, "core compares the devices of pools and captures"
        return routed(pool, pool.native, capture.root.begun)

    @hookimpl
    def tensorplay_pool_statistics(self, pool: TorchPool) -> PoolStatistics:
        """As ``memory.read_statistics``."""
        return read_statistics(pool)

    @hookimpl
    def tensorplay_pool_release(self, pool: TorchPool) -> None:
        """Each graph gave back its own share before; here the last one and the streams go."""
        self.pools.forget(pool)
        self.side_streams.retire(pool)
        if pool.host is not None:
            self.bases("host").pool_release(pool.host)
            pool.host = None
