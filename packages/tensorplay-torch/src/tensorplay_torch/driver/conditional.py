"""Conditionals: the CUDA driver's nodes with torch's memory, or the host driver's on the CPU."""

from __future__ import annotations

from typing import Any

from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import Capture, ConditionalKind
from tensorplay_torch.cpu import bodies as cpu_bodies
from tensorplay_torch.cpu.bodies import CpuBody
from tensorplay_torch.cpu.capture import CpuCapture
from tensorplay_torch.cuda import bodies as cuda_bodies
from tensorplay_torch.cuda.bodies import CudaBody
from tensorplay_torch.cuda.capture import OpenCapture
from tensorplay_torch.tracking.predicates import read

from .graph import Graphs

__all__ = ["Conditionals"]


class Conditionals(Graphs):
    """The conditional noun, and with it the whole driver."""

    @hookimpl
    def tensorplay_conditional_open(
        self,
        capture: OpenCapture | CudaBody | CpuCapture | CpuBody,
        kind: ConditionalKind,
        predicate: Any,
        branches: int,
        first: bool,
        max_steps: int | None,
    ) -> tuple[Capture, ...]:
        """Adds the node and returns its bodies, not yet entered."""
        if isinstance(capture, OpenCapture | CudaBody):
            return cuda_bodies.open_bodies(
                capture, kind, predicate, branches, first=first, max_steps=max_steps
            )
        return cpu_bodies.open_bodies(
            capture, kind, predicate, branches, first=first, max_steps=max_steps
        )

    @hookimpl
    def tensorplay_conditional_enter(self, body: CudaBody | CpuBody) -> None:
        """Captures into the body; its allocations are the graph's until that is closed."""
        body.enter()

    @hookimpl
    def tensorplay_conditional_set(self, body: CudaBody | CpuBody, predicate: Any) -> None:
        """Samples ``predicate`` here."""
        body.sample(predicate)

    @hookimpl
    def tensorplay_conditional_exit(self, body: CudaBody | CpuBody) -> None:
        """Ends the body; a while body that cannot end its loop is refused."""
        body.exit()

    @hookimpl
    def tensorplay_conditional_read(self, predicate: Any) -> int:
        """Waits for the tensor's device and reads it."""
        return read(predicate)
