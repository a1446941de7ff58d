"""What a captured graph can tell of itself: topology, memory, native handles, pictures."""

from __future__ import annotations

import shutil
from collections.abc import Hashable
from typing import Any

from . import pictures, registry
from .errors import ArgumentTypeError, GraphStateError
from .pool import SharedPool
from .protocols import PoolStatistics, Template
from .recording import CaptureMethods
from .signature import a_type
from .topology import Topology

__all__ = ["InspectionMethods", "export_dot"]


class InspectionMethods(CaptureMethods):
    """The telling part of a graph."""

    _debug: bool

    @property
    def pool_id(self) -> Hashable:
        """Id of the memory pool that the graph was captured against.

        Raises:
            GraphStateError: Nothing was captured.
        """
        return self._pool("reading the pool of").id

    def pool(self) -> Hashable:
        """The same as ``pool_id``."""
        return self.pool_id

    @property
    def memory(self) -> PoolStatistics:
        """Memory of the graph's pool now, in bytes (shared with the graphs that share the pool).

        Raises:
            GraphStateError: Nothing was captured.
        """
        return self._pool("reading the memory of").statistics()

    def _pool(self, doing: str) -> SharedPool:
        if self._shared_pool is None:
            raise self._wrong_state(doing, "Capture it first: with graph(g): ...")
        return self._shared_pool

    @property
    def topology(self) -> Topology:
        """Nodes, names, edges, conditional bodies and annotations of what was captured.

        Raises:
            GraphStateError: Nothing was captured.
        """
        topology = self._runtime.graph_topology(self._captured("reading the topology of"))
        return topology if self._timeline is None else self._timeline.applied(topology)

    @property
    def node_count(self) -> int:
        """How many nodes the captured graph has at its top level.

        Raises:
            GraphStateError: Nothing was captured.
        """
        return self._captured("counting the nodes of").node_count

    def raw_cuda_graph(self) -> Any:
        """The native graph (on CUDA a ``cudaGraph_t`` as int), which stays this object's.

        Raises:
            GraphStateError: Nothing was captured.
        """
        return self._captured("reading the native graph of").raw()

    def raw_cuda_graph_exec(self) -> Any:
        """The native executable (on CUDA a ``cudaGraphExec_t`` as int), which stays this object's.

        Raises:
            GraphStateError: The graph was not instantiated.
        """
        if self._executable is None:
            raise self._wrong_state("reading the native executable of", "Call instantiate() first.")
        return self._executable.raw()

    def enable_debug_mode(self) -> None:
        """``debug_dump`` from here on writes the full attributes of every node."""
        self._debug = True

    def debug_dump(self, path: str) -> None:
        """Writes the driver's own DOT form of the graph to ``path``.

        Raises:
            GraphStateError: Nothing was captured.
            OSError: The file cannot be written.
        """
        text = self._runtime.graph_dot(self._captured("dumping"), self._debug)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def _captured(self, doing: str) -> Template:
        if self._template is None:
            raise self._wrong_state(doing, "Capture it first: with graph(g): ...")
        return self._template

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """A picture for notebooks where graphviz is installed, and a tree of text everywhere."""
        if self._template is None:
            return {"text/plain": repr(self)}
        bundle = {"text/plain": f"{self!r}\n{pictures.to_tree(self.topology)}"}
        if shutil.which("dot") is not None:
            try:
                bundle["image/svg+xml"] = pictures.to_svg(self.topology)
            except ImportError:  # The program without the Python package: text will do.
                return bundle
        return bundle


def export_dot(
    path: str | None = None, *, graph: InspectionMethods | None = None, verbose: bool = True
) -> str:
    """The graph as DOT text: nodes with their names, edges, conditional bodies as clusters.

    Args:
        path: Also write it there.
        graph: The graph; None is the one whose capture completed last, if it is still alive.
        verbose: Give the attributes of nodes (grid, block, bytes), not only their names.

    Raises:
        ArgumentTypeError: ``graph`` is none.
        GraphStateError: None is alive, or nothing was captured into it.
        OSError: The file cannot be written.
    """
    chosen = graph if graph is not None else registry.last_captured()
    if chosen is not None and not isinstance(chosen, InspectionMethods):
        raise ArgumentTypeError(
            doing="exporting",
            subject="a graph",
            met=f"it is {a_type(chosen)}",
            remedy="Pass a CUDAGraph.",
        )
    if chosen is None:
        raise GraphStateError(
            doing="exporting",
            subject="the last captured graph",
            met="none is alive",
            remedy="Capture one and keep it, or pass graph=g.",
        )
    text = pictures.to_dot(chosen.topology, verbose=verbose)
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return text
