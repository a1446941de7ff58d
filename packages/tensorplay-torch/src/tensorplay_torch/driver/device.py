"""Devices: which there are, their streams, their tensors, and how inputs reach a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from tensorplay_core.errors import DriverError
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import StagePlan
from tensorplay_torch import _private, compiled
from tensorplay_torch.cpu.capture import CpuExecutable
from tensorplay_torch.cuda.graph import CudaExecutable
from tensorplay_torch.resources.arrays import copy_into, like, overlap
from tensorplay_torch.resources.bases import Bases
from tensorplay_torch.resources.devices import index_of, resolve_device, stream_handle
from tensorplay_torch.resources.hosting import on_host
from tensorplay_torch.resources.pools import TorchPool
from tensorplay_torch.resources.signatures import compile_check
from tensorplay_torch.resources.streams import SideStreams, as_torch_stream
from tensorplay_torch.staging import plan

__all__ = ["Device"]


class Device:
    """The device noun. CUDA devices and the CPU are one driver's: each value says which."""

    def __init__(self) -> None:
        self.bases = Bases()
        self.side_streams = SideStreams(self.bases)

    @hookimpl
    def tensorplay_describe(self) -> Mapping[str, str]:
        """torch, what it was built for, the devices, and the private names found or missing."""
        facts = {
            "torch": torch.__version__,
            "built for": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only",
            "private names": _private.summary(),
            "compiled parts": compiled.summary(),
        }
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            facts[f"cuda:{index}"] = (
                f"{found.name}, {found.total_memory >> 20} MiB, "
                f"compute capability {found.major}.{found.minor}"
            )
        facts["cpu"] = f"{torch.get_num_threads()} threads, by core's host driver"
        if torch.cuda.is_available():
            try:
                facts |= {f"cuda: {k}": v for k, v in self.bases("cuda").describe().items()}
            except DriverError as error:
                facts["cuda"] = f"not usable: {error.met}"
        return facts

    @hookimpl
    def tensorplay_resolve_device(self, device: object) -> torch.device:
        """As ``devices.resolve_device``."""
        return resolve_device(device)

    @hookimpl
    def tensorplay_current_stream(self, device: torch.device) -> int:
        """The current stream: torch's on CUDA, the host driver's on the CPU."""
        if device.type == "cuda":
            return torch.cuda.current_stream(device).cuda_stream
        host = self.bases("host")
        return host.current_stream(host.resolve_device(None))

    @hookimpl
    def tensorplay_side_stream(self, device: torch.device, pool: TorchPool) -> object:
        """The stream that captures into ``pool`` run on, as ``streams.SideStreams`` says."""
        if pool.native is not None:
            return self.side_streams.of(pool)
        host = self.bases("host")
        return host.side_stream(host.resolve_device(None), on_host(pool, host))

    @hookimpl
    def tensorplay_resolve_stream(self, stream: object, device: torch.device) -> int:
        """Handle of a torch stream, or of whatever the driver beneath takes."""
        handle = stream_handle(stream, device)
        if handle is not None:
            return handle
        if device.type == "cuda":
            return self.bases("cuda").resolve_stream(stream, index_of(device))
        host = self.bases("host")
        return host.resolve_stream(stream, host.resolve_device(None))

    @hookimpl
    def tensorplay_using_stream(
        self, stream: object, device: torch.device
    ) -> AbstractContextManager[Any]:
        """Makes it torch's current stream on CUDA; on the CPU the host driver's."""
        if device.type == "cuda":
            return torch.cuda.stream(as_torch_stream(self.bases, stream, device))
        host = self.bases("host")
        return host.using_stream(stream, host.resolve_device(None))

    @hookimpl
    def tensorplay_array_like(self, array: torch.Tensor) -> torch.Tensor:
        """As ``arrays.like``."""
        return like(array)

    @hookimpl
    def tensorplay_array_copy(self, destination: torch.Tensor, source: Any) -> None:
        """As ``arrays.copy_into``."""
        copy_into(destination, source)

    @hookimpl
    def tensorplay_array_overlap(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        """As ``arrays.overlap``."""
        return overlap(first, second)

    @hookimpl
    def tensorplay_signature_check(
        self, static: Sequence[torch.Tensor]
    ) -> Callable[[Sequence[Any]], bool]:
        """As ``signatures.compile_check``."""
        return compile_check(static)

    @hookimpl
    def tensorplay_stage(
        self,
        executable: CudaExecutable | CpuExecutable,
        static_inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
    ) -> StagePlan:
        """As ``staging.plan``."""
        return plan(self.bases, executable, static_inputs, results)
