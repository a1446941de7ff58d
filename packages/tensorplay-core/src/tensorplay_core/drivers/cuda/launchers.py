"""Launches with copies around them: inside a copy of the graph, or beside its own executable."""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorplay_core import reclaim
from tensorplay_core.errors import DriverCallFailed, TensorplayError

from . import kernels as ptx
from .ending import drain
from .memory import Allocation
from .modules import Arguments
from .tables import Entry, Kernels, Table, tables

if TYPE_CHECKING:
    from .contexts import CudaDevice
    from .executable import CudaExecutable
    from .work import Work

__all__ = ["Beside", "Embedded", "Rail", "launcher"]

log = logging.getLogger(__name__)


class Beside:
    """Copy kernels before and after a launch of the graph's own executable.

    Attributes:
        native: None: it is no executable alone, whose launches CUDA would order.
    """

    native = None

    def __init__(
        self,
        kernels: Kernels,
        executable: CudaExecutable,
        inputs: Sequence[Entry],
        results: Sequence[Entry],
    ) -> None:
        self._kernels, self._executable = kernels, executable
        self._device = executable.device
        self._in = tables(kernels, [entry.nbytes for entry in inputs])
        self._out = tables(kernels, [entry.nbytes for entry in results])
        for table, start, stop in self._in:
            table.destinations([entry.address for entry in inputs[start:stop]])
        for table, start, stop in self._out:
            table.sources([entry.address for entry in results[start:stop]])
        hot = kernels.work.hot
        self._launch, self._graph = hot.launch, hot.native(executable.native)

    def __call__(self, sources: Sequence[int], destinations: Sequence[int], target: Any) -> Any:
        """Launches; returns the native result, or raises as the calls of ``hot`` do."""
        with self._kernels.work.activated(self._device):
            for table, start, stop in self._in:
                table.sources(sources[start:stop])
                code = table.launch(target)
                if code:
                    return code
            result = self._launch(self._graph, target)
            if result and result[0]:
                return result[0]
            for table, start, stop in self._out:
                table.destinations(destinations[start:stop])
                code = table.launch(target)
                if code:
                    return code
        return 0

    def rewrite(self, node: Any, parameters: Any) -> None:
        """Nothing: what is launched is the graph's own executable."""

    def close(self) -> None:
        """Nothing of its own to end."""


class Rail(NamedTuple):
    """What a launch of an ``Embedded`` with one table touches.

    Attributes:
        native: The executable; ``executable`` is what the calls of ``hot`` take for it.
        node: The copy kernel; ``parameters`` are those that its table is read through.
        table: It begins with the addresses to copy from, then come those of the results.
    """

    native: Any
    executable: Any
    node: Any
    parameters: Any
    table: Table


class Embedded:
    """An executable of a copy of the graph, with a copy kernel before it and one after it.

    The kernel before it also stores the addresses of the results into a table in device memory,
    which the kernel after it reads: so one kernel's parameters are set a launch, not two.

    Attributes:
        native: The executable.
        sets: Counts the calls, each of which sets parameters.
    """

    def __init__(
        self,
        kernels: Kernels,
        executable: CudaExecutable,
        inputs: Sequence[Entry],
        results: Sequence[Entry],
    ) -> None:
        work, self._device = kernels.work, executable.device
        self._elsewhere = executable.elsewhere
        self._work = work
        count = len(results)
        self._letters: Allocation | None = None
        self.sets = 0
        mailbox = 0
        if count:
            self._letters = Allocation(work.memory, 24 * count, executable.device)
            mailbox = self._letters.address
        sizes = [entry.nbytes for entry in inputs] + [ptx.STORE] * count
        addresses = [entry.address for entry in inputs]
        addresses += [mailbox + 8 * (count + place) for place in range(count)]
        self._tables = tables(kernels, sizes)
        for table, start, stop in self._tables:
            table.destinations(addresses[start:stop])
            table.sources([0] * (stop - start))
        self._graph, self.native, nodes = self._build(kernels, executable, results, mailbox)
        hot = work.hot
        self._set, self._launch, self._executable = (
            hot.set_kernel,
            hot.launch,
            hot.native(self.native),
        )
        self._nodes = [
            (table, start, stop, hot.native(node), table.hot_parameters())
            for table, start, stop, node in nodes
        ]
        # What the graph uses lives until the launches of this executable are waited for, too.
        kept = (self._letters, kernels, executable.template.owned)
        self._end = weakref.finalize(
            self, _destroy, work, executable.device, self.native, self._graph, kept
        )
        self._end.atexit = False

    def _build(
        self, kernels: Kernels, executable: CudaExecutable, results: Sequence[Entry], mailbox: int
    ) -> tuple[Any, Any, list[tuple[Table, int, int, Any]]]:
        work, about = kernels.work, f"a staged copy of {executable.template.subject}"
        calls, count = work.cu, len(results)
        with work.inside(executable.device):
            graph = calls.cuGraphClone(executable.template.live().graph, about=about)
            try:
                nodes, edges = calls.nodes(graph, about=about), calls.edges(graph, about=about)
                after = {int(node) for _, node in edges}
                before = {int(node) for node, _ in edges}
                roots = [node for node in nodes if int(node) not in after]
                leaves = [node for node in nodes if int(node) not in before]
                staged = []
                for table, start, stop in self._tables:
                    node = calls.cuGraphAddKernelNode(graph, [], 0, table.parameters(), about=about)
                    if roots:
                        calls.cuGraphAddDependencies(
                            graph,
                            [node] * len(roots),
                            roots,
                            calls.edge_data(None, len(roots)),
                            len(roots),
                            about=about,
                        )
                    staged.append((table, start, stop, node))
                if count:
                    self._write_letters(kernels, results, mailbox)
                    arguments = Arguments(kernels.through, [mailbox, count])
                    grid = kernels.grid([entry.nbytes for entry in results])
                    last = leaves or [node for *_, node in staged]
                    calls.cuGraphAddKernelNode(
                        graph,
                        last,
                        len(last),
                        kernels.parameters(kernels.through, grid, arguments.address),
                        about=about,
                    )
                return graph, calls.cuGraphInstantiate(graph, 0, about=about), staged
            except BaseException:
                calls.cuGraphDestroy(graph, about=about)
                raise

    def _write_letters(self, kernels: Kernels, results: Sequence[Entry], mailbox: int) -> None:
        count, work = len(results), kernels.work
        raw = (ctypes.c_uint64 * (3 * count))(
            *[entry.address for entry in results],
            *([0] * count),
            *[entry.nbytes for entry in results],
        )
        service = work.service(self._device)
        work.cu.cuMemcpyHtoDAsync(
            mailbox, ctypes.addressof(raw), ctypes.sizeof(raw), service, about="a copy table"
        )
        work.cu.cuStreamSynchronize(service, about="a copy table")

    def __call__(self, sources: Sequence[int], destinations: Sequence[int], target: Any) -> Any:
        """Launches; returns the native result, or raises as the calls of ``hot`` do."""
        self.sets += 1
        values = (*sources, *destinations) if destinations else sources
        for table, start, stop, node, parameters in self._nodes:
            table.sources(values[start:stop])
            result = self._set(self._executable, node, parameters)
            if result and result[0]:
                return result[0]
        if self._elsewhere is not None and self._elsewhere(target):
            with self._work.activated(self._device):
                result = self._launch(self._executable, target)
        else:
            result = self._launch(self._executable, target)
        return result[0] if result else 0

    def rail(self) -> Rail | None:
        """Its parts, if one table is all there is to write; None if it takes more."""
        if len(self._nodes) != 1:
            return None
        table, _, _, node, parameters = self._nodes[0]
        return Rail(self.native, self._executable, node, parameters, table)

    def rewrite(self, node: Any, parameters: Any) -> None:
        """Gives its copy of a node of the graph other parameters, from the next launch on."""
        about = "a staged executable"
        copied = self._work.cu.cuGraphNodeFindInClone(node, self._graph, about=about)
        self._work.cu.cuGraphExecKernelNodeSetParams(self.native, copied, parameters, about=about)

    def close(self) -> None:
        """Waits for its launches, then destroys the executable and its graph. Idempotent."""
        self._end()


def launcher(
    kernels: Kernels,
    executable: CudaExecutable,
    inputs: Sequence[Entry],
    results: Sequence[Entry],
) -> Beside | Embedded:
    """Embedded if the graph allows a copy of itself, else beside it."""
    if not executable.template.branches and not executable.template.closed:
        try:
            return Embedded(kernels, executable, inputs, results)
        except DriverCallFailed as error:
            # Nodes that allow one executable only: alloc, free, conditional in a child graph,
            # device-updatable kernels. The driver knows them all.
            log.debug("%s cannot be copied for staging: %s", executable.subject, error)
    return Beside(kernels, executable, inputs, results)


def _destroy(work: Work, device: CudaDevice, native: Any, graph: Any, kept: object) -> None:
    def destroy() -> None:
        nonlocal kept
        try:
            drain(work, native, device)
        except TensorplayError:
            # A context lost to a failed kernel has nothing left to wait for.
            log.exception("waiting for the last staged launches of a graph failed")
        with work.inside(device):
            work.cu.cuGraphExecDestroy(native, about="a staged executable")
            work.cu.cuGraphDestroy(graph, about="a staged graph")
        kept = None

    reclaim.dispose(destroy)
