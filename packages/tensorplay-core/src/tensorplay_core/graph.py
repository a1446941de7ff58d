"""``CUDAGraph``: work recorded once, replayed by one launch."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, ClassVar, cast

from . import pictures, reclaim, registry
from .errors import GraphStateError
from .pool import SharedPool
from .protocols import Device, Executable, PoolStatistics, Template
from .recording import CaptureMethods
from .runtime import Runtime, select
from .topology import Topology

__all__ = ["CUDAGraph", "export_dot", "is_current_stream_capturing"]


class CUDAGraph(CaptureMethods):
    """GPU (or host) work, recorded once and replayed for the price of a launch.

    Most users capture with ``with graph(g): ...``; the methods below are what that does.

    Args:
        keep_graph: Do not instantiate at the end of the capture, but at the first ``replay`` or at
            ``instantiate``, which then may be called again to instantiate anew.
        device: Device to capture on; None is the current device when the capture begins.

    Raises:
        UnknownDriver: ``TENSORPLAY_DRIVER`` names no installed driver.
        DriverUnavailable: The driver cannot work here.
        ArgumentError: No such device.
    """

    driver: ClassVar[str | None] = None
    """The driver this class is bound to; None chooses as ``select`` does."""

    def __init__(self, *, keep_graph: bool = False, device: object = None) -> None:
        self._runtime: Runtime = select(self.driver)
        self._device: Device | None = (
            None if device is None else self._runtime.resolve_device(device)
        )
        self._keep_graph = keep_graph
        self._debug = False
        self._closed = False
        self._lock = threading.RLock()
        self._generators: tuple[object, ...] = ()
        self._forget()
        self._serial = registry.register(self)

    def instantiate(self) -> None:
        """Makes the captured graph executable. No effect once done, but with ``keep_graph`` anew.

        Raises:
            GraphStateError: Nothing was captured.
            DriverCallFailed: The driver could not.
        """
        with self._lock:
            if self._template is None:
                raise self._wrong_state("instantiating", "Capture it first: with graph(g): ...")
            if self._executable is not None and not self._keep_graph:
                return
            executable = self._runtime.graph_instantiate(self._template)
            before, self._executable = self._executable, executable
            # The driver's closure itself, not a method around it: each frame costs 50 ns a replay.
            self.__dict__["replay"] = executable.launch
        if before is not None:
            reclaim.dispose(before.close)

    def replay(self, stream: object = None) -> None:
        """Launches the graph. It returns at once; the device runs it in the stream's order.

        Args:
            stream: A torch or CuPy stream, anything with ``__cuda_stream__``, or an int handle;
                None is the current stream.

        Raises:
            GraphStateError: Nothing was captured, or the graph was reset or closed.
            StaleGraph: Memory that it reads has died or moved (where the capture asked to check).
            DriverCallFailed: The driver refused the launch.
        """
        if self._executable is None:
            if self._template is None:
                raise self._wrong_state("replaying", "Capture it first: with graph(g): ...")
            self.instantiate()
        cast("Executable", self._executable).launch(stream)

    def upload(self, stream: object = None) -> None:
        """Moves the executable to the device, so that the first replay does not have to.

        Raises:
            GraphStateError: Nothing was captured.
        """
        self.instantiate() if self._executable is None else None
        cast("Executable", self._executable).upload(stream)

    def retain(self, obj: object) -> None:
        """Keeps ``obj`` (a module, a kernel, a host buffer) alive as long as the graph can run.

        Raises:
            GraphStateError: The graph is empty or closed.
        """
        if self._template is not None:
            self._template.retain(obj)
        elif self._capture is not None:
            self._retained.append(obj)
        else:
            raise self._wrong_state("retaining for", "Capture it first: with graph(g): ...")

    def register_generator_state(self, generator: object) -> None:
        """Lets the graph follow a random generator beside the device's default one.

        Raises:
            GraphStateError: The graph is captured already, or closed.
        """
        if self._state() != "empty":
            raise self._wrong_state("registering a generator with", "Register before the capture.")
        self._generators = (*self._generators, generator)

    def reset(self) -> None:
        """Destroys what was captured and lets go of the pool. It may capture again. Idempotent.

        Tensors born in the capture stay valid; their memory returns with the last of them.

        Raises:
            GraphStateError: A capture is under way in another thread.
        """
        with self._lock:
            if self._capture is not None:
                if self._thread != threading.get_ident():
                    raise self._wrong_state("resetting", "End the capture in its thread first.")
                self._abort(None)
            executable, template, shared = self._executable, self._template, self._shared_pool
            self._forget()
        for part in (executable, template):
            if part is not None:
                reclaim.dispose(part.close)
        if shared is not None:
            shared.release()

    def close(self) -> None:
        """Ends the graph for good. Idempotent, in any order, from any thread.

        During another capture the destruction is put off until that ends.
        """
        if not self._closed:
            self.reset()
            self._closed = True

    def __del__(self) -> None:
        # A graph that never finished __init__ has no lock; there is nothing to end then.
        if "_lock" in self.__dict__:
            self.close()

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
        """Nodes, names, edges and conditional bodies of what was captured.

        Raises:
            GraphStateError: Nothing was captured.
        """
        return self._runtime.graph_topology(self._captured("reading the topology of"))

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


def is_current_stream_capturing(*, driver: str | None = None) -> bool:
    """True if this thread's current stream is capturing, whichever library began the capture.

    Args:
        driver: Name of the driver; None chooses as ``select`` does.
    """
    runtime = select(driver)
    return runtime.graph_capturing(runtime.resolve_device(None))


def export_dot(
    path: str | None = None, *, graph: CUDAGraph | None = None, verbose: bool = True
) -> str:
    """The graph as DOT text: nodes with their names, edges, conditional bodies as clusters.

    Args:
        path: Also write it there.
        graph: The graph; None is the one whose capture completed last, if it is still alive.
        verbose: Give the attributes of nodes (grid, block, bytes), not only their names.

    Raises:
        GraphStateError: There is no such graph, or nothing was captured into it.
        OSError: The file cannot be written.
    """
    chosen = graph if graph is not None else registry.last_captured()
    if not isinstance(chosen, CUDAGraph):
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
