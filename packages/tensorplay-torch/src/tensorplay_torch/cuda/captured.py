"""A finished capture on CUDA: what it owns, and its template."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from tensorplay_core import unwinding
from tensorplay_core.errors import GraphStateError
from tensorplay_core.runtime import Runtime
from tensorplay_torch.resources.bases import NativeTemplate
from tensorplay_torch.resources.generators import Generators
from tensorplay_torch.resources.pools import Begun, Native, TorchPool
from tensorplay_torch.resources.routing import release_bodies

from .watch import Watch

if TYPE_CHECKING:
    import torch

    from .graph import CudaExecutable

__all__ = ["Captured", "CudaTemplate"]


_holding = threading.RLock()
"""Guards who holds what. Reentrant, because a finaliser may end a graph in the midst of that."""


class Captured:
    """What one capture owns. Its template and its executables share it; the last frees it.

    Args:
        graph: torch's own graph, which holds the pool and the generators' states.
        pool: What it allocated from.
        bodies: What its conditional bodies allocated from, and how often each began to.
        generators: Those it may draw from.
        watch: What was seen of the captured work.

    Attributes:
        owned: Whatever else must live as long as the graph can run.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        pool: TorchPool,
        bodies: Begun,
        generators: Generators,
        watch: Watch,
    ) -> None:
        self.pool, self.generators, self.watch = pool, generators, watch
        self.owned: list[object] = []
        self._graph: torch.cuda.CUDAGraph | None = graph
        assert pool.native is not None, "it served the capture"
        self._native: Native = pool.native
        # It kept the pool until this capture; to end it takes longer than capturing may.
        self._before, pool.last = pool.last, None
        self._bodies = bodies
        self._holders: set[object] = set()

    @property
    def graph(self) -> torch.cuda.CUDAGraph:
        """The graph as torch has it.

        Raises:
            GraphStateError: Nobody holds it any more.
        """
        if self._graph is None:
            raise GraphStateError(
                doing="using",
                subject=f"a graph on {self.pool.device}",
                met="it is closed",
                remedy="Capture again, or keep the graph open.",
            )
        return self._graph

    def is_safe_with(self, other: Captured) -> bool:
        """True if it may go while it runs, as ``other`` stays.

        It has nothing but its part of the memory under their native id, which only captures reuse:
        they begin by waiting for the device.
        """
        kept = self.owned or self._bodies or self.watch.keeps
        return self.pool is other.pool and self._native == other._native and not kept

    def hold(self, holder: object) -> None:
        """One more holder; it counts once."""
        with _holding:
            self._holders.add(holder)

    def release(self, holder: object) -> None:
        """One holder lets go; with the last the memory goes back. Idempotent."""
        with _holding:
            self._holders.discard(holder)
            if self._holders:
                return
        unwinding.through(self._free)

    def _free(self) -> None:
        graph = self._graph
        if graph is None:
            return
        if self._before is not None:
            self._before.reset()
            self._before = None
        self.pool.end(graph, self._native)
        if self._bodies:
            release_bodies(self.pool, self._bodies)
        self.watch.close()
        self.owned.clear()
        # torch takes a graph off its generators when the object goes, not at a reset.
        self._graph = None


class CudaTemplate:
    """A graph that torch captured and keeps, with core's CUDA driver's view of it."""

    def __init__(self, captured: Captured, inner: NativeTemplate) -> None:
        self.captured, self.inner = captured, inner
        self.executable: weakref.ref[CudaExecutable] | None = None
        # In its place, so that what it captured does not keep it alive.
        self._holder = object()
        captured.hold(self._holder)

    @property
    def node_count(self) -> int:
        """Nodes at the top level."""
        return self.inner.node_count

    def retain(self, owned: object) -> None:
        """Keeps ``owned`` alive as long as the graph can run."""
        self.captured.owned.append(owned)

    def raw(self) -> int:
        """The ``cudaGraph_t``."""
        return self.captured.graph.raw_cuda_graph()

    def close(self) -> None:
        """Lets go of the graph. Idempotent. An executable made from it stays whole."""
        self.inner.close()
        self.captured.release(self._holder)

    def does_as(self, other: CudaTemplate, base: Runtime) -> bool:
        """True if its nodes run what those of ``other`` run, in the same order."""
        mine, others = self.inner.functions(), other.inner.functions()
        if mine is not None and mine == others:
            return True
        return self._kernels(base) == other._kernels(base)

    def _kernels(self, base: Runtime) -> list[str]:
        """Names of all nodes, bodies included, in order."""
        return [f"{node.kind} {node.name}" for node in base.graph_topology(self.inner).walk()]
