"""Graphs: captured by torch on CUDA, by a recorder on the CPU."""

from __future__ import annotations

from typing import TypeAlias

import torch

from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import CaptureMode, CaptureOptions, Executable, Template, Update
from tensorplay_core.runtime import Runtime
from tensorplay_core.topology import Topology
from tensorplay_torch.cpu import capture as cpu_capture
from tensorplay_torch.cpu.bodies import CpuBody
from tensorplay_torch.cpu.capture import CpuCapture, CpuExecutable, CpuTemplate
from tensorplay_torch.cuda import capture as cuda_capture
from tensorplay_torch.cuda.adoption import ForeignCapture, adopt
from tensorplay_torch.cuda.bodies import CudaBody
from tensorplay_torch.cuda.broken import of_block
from tensorplay_torch.cuda.capture import CudaCapture
from tensorplay_torch.cuda.captured import CudaTemplate
from tensorplay_torch.cuda.graph import CudaExecutable
from tensorplay_torch.resources.devices import index_of
from tensorplay_torch.resources.pools import TorchPool
from tensorplay_torch.resources.streams import as_torch_stream

from .pool import Pools

__all__ = ["Graphs"]

Root: TypeAlias = CudaCapture | ForeignCapture | CpuCapture
TorchTemplate: TypeAlias = CudaTemplate | CpuTemplate


class Graphs(Pools):
    """The graph noun. What is made on the CPU is the host driver's own, and goes back to it."""

    @hookimpl
    def tensorplay_graph_begin(
        self,
        device: torch.device,
        stream: object,
        pool: TorchPool,
        mode: CaptureMode,
        options: CaptureOptions,
    ) -> Root:
        """Begins torch's capture on CUDA, or a recording on the CPU."""
        if stream is None:
            stream = self.tensorplay_side_stream(device, pool)
        if pool.native is None:
            return cpu_capture.begin(self.bases, stream, pool, mode, options)
        chosen = pool.stream
        if chosen is None or stream is not chosen:
            chosen = as_torch_stream(self.bases, stream, device)
        return cuda_capture.begin(self.bases, self.side_streams, chosen, pool, mode, options)

    @hookimpl
    def tensorplay_graph_adopt(self, stream: object, owner: str) -> ForeignCapture:
        """A capture that torch itself (``torch.cuda.graph``) or another library began."""
        return adopt(self.bases, self.pools, self.side_streams, stream, owner)

    @hookimpl
    def tensorplay_graph_mark(self, capture: Root | CudaBody | CpuBody) -> int:
        """As the driver beneath counts."""
        return capture.root.base.graph_mark(capture.inner)

    @hookimpl
    def tensorplay_graph_end(self, capture: Root) -> TorchTemplate | Template:
        """Ends it; on CUDA torch keeps the graph and the CUDA driver looks at it."""
        return capture.end()

    @hookimpl
    def tensorplay_graph_abort(
        self, capture: Root, error: BaseException | None
    ) -> BaseException | None:
        """Discards it, bodies first, and gives back what it took of torch."""
        capture.abort(error)
        if isinstance(capture, CpuCapture):
            return capture.explained(error)
        return of_block(error)

    @hookimpl
    def tensorplay_graph_instantiate(self, template: TorchTemplate) -> Executable:
        """By torch on CUDA, where later launches need torch for random numbers only."""
        if isinstance(template, CudaTemplate):
            return CudaExecutable(self.bases, template)
        return CpuExecutable(self.bases("host"), template)

    @hookimpl
    def tensorplay_executable_id(self, executable: Executable) -> int:
        """On CUDA as the driver beneath says; 0 on the CPU."""
        if isinstance(executable, CudaExecutable):
            return self.bases("cuda").executable_id(executable.inner)
        return 0

    @hookimpl
    def tensorplay_graph_update(self, executable: Executable, template: TorchTemplate) -> Update:
        """In place where the driver beneath can, and no random generator is involved."""
        if isinstance(executable, CudaExecutable) and isinstance(template, CudaTemplate):
            return executable.update(template)
        if isinstance(executable, CpuExecutable) and isinstance(template, CpuTemplate):
            return executable.update(self.bases("host"), template)
        return Update(in_place=False, reason="one runs on CUDA, the other on the CPU")

    @hookimpl
    def tensorplay_graph_topology(self, template: TorchTemplate) -> Topology:
        """As the driver beneath reads it."""
        return self._beneath(template).graph_topology(template.inner)

    @hookimpl
    def tensorplay_graph_dot(self, template: TorchTemplate, verbose: bool) -> str:
        """As the driver beneath writes it."""
        return self._beneath(template).graph_dot(template.inner, verbose)

    def _beneath(self, template: TorchTemplate) -> Runtime:
        return self.bases("cuda" if isinstance(template, CudaTemplate) else "host")

    @hookimpl
    def tensorplay_graph_capturing(self, device: torch.device) -> bool:
        """True if this thread's current stream is captured, by whomever."""
        if device.type != "cuda":
            host = self.bases("host")
            return host.graph_capturing(host.resolve_device(None))
        if not torch.cuda.is_initialized():
            return False
        with torch.cuda.device(index_of(device)):
            return torch.cuda.is_current_stream_capturing()
