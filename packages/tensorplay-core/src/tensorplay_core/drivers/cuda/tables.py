"""Copy kernels and their tables, inside a graph or beside it."""

from __future__ import annotations

import ctypes
import logging
import struct
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorplay_core import reclaim
from tensorplay_core.errors import DriverCallFailed, TensorplayError

from . import kernels as ptx
from .executable import drain
from .memory import Allocation
from .modules import Arguments

if TYPE_CHECKING:
    from .contexts import CudaDevice
    from .executable import CudaExecutable
    from .work import Work

__all__ = ["Beside", "Embedded", "Entry", "Kernels", "Table", "launcher"]

log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One buffer of the graph."""

    address: int
    nbytes: int


class Kernels:
    """The copy kernels of one device, as native handles and the shapes to launch them in."""

    def __init__(self, work: Work, device: CudaDevice) -> None:
        self.work, self.device = work, device
        self.module = work.shipped(device, "copy")
        self.functions = {
            capacity: self.module.function(ptx.copy_name(capacity))
            for capacity in ptx.COPY_CAPACITIES
        }
        self.through = self.module.function("tensorplay_copy_table")
        attribute = work.native.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        processors = work.cu.cuDeviceGetAttribute(attribute, work.cu.cuDeviceGet(int(device)))
        self._most_blocks = 16 * int(processors)

    def grid(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Blocks in a row, and rows, for copies of these sizes in bytes.

        A row has enough threads for its longest copy at sixteen bytes each, as far as the device
        has room; what is longer goes round.
        """
        wanted = -(-max(sizes, default=1) // (16 * ptx.COPY_THREADS))
        room = max(1, self._most_blocks // max(len(sizes), 1))
        return max(1, min(wanted, room)), max(1, len(sizes))

    def parameters(self, function: Any, grid: tuple[int, int], address: int) -> Any:
        """Native kernel node parameters."""
        native = self.work.native.CUDA_KERNEL_NODE_PARAMS()
        native.func = function.native
        native.gridDimX, native.gridDimY, native.gridDimZ = *grid, 1
        native.blockDimX, native.blockDimY, native.blockDimZ = ptx.COPY_THREADS, 1, 1
        native.sharedMemBytes = 0
        native.kernelParams = address
        return native

    def copy_now(self, copies: Sequence[tuple[int, int, int]], target: Any) -> Any:
        """Copies ``(source, destination, bytes)`` on a stream; returns the native result."""
        with self.work.activated(self.device):
            for table, start, stop in _tables(self, [size for *_, size in copies]):
                table.sources([source for source, *_ in copies[start:stop]])
                table.destinations([destination for _, destination, _ in copies[start:stop]])
                code = table.launch(target)
                if code:
                    return code
        return 0


class Table:
    """The parameter block of one copy kernel, written in place before each launch.

    Args:
        kernels: The device's copy kernels.
        sizes: Bytes of each entry.
    """

    def __init__(self, kernels: Kernels, sizes: Sequence[int]) -> None:
        self._kernels = kernels
        capacity = ptx.copy_capacity(len(sizes))
        self.function = kernels.functions[capacity]
        self.grid = kernels.grid([size for size in sizes if size != ptx.STORE] or [1])
        self.grid = self.grid[0], max(1, len(sizes))
        self._block = (ctypes.c_uint64 * (3 * capacity))()
        self._pointer = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self.address = ctypes.addressof(self._pointer)
        self._targets = 8 * capacity
        self._pack = struct.Struct(f"<{len(sizes)}Q").pack_into
        self._pack(self._block, 16 * capacity, *sizes)
        self._launch = kernels.work.cu.raw("cuLaunchKernel")

    def sources(self, addresses: Sequence[int]) -> None:
        """Sets what each entry copies from."""
        self._pack(self._block, 0, *addresses)

    def destinations(self, addresses: Sequence[int]) -> None:
        """Sets what each entry copies to."""
        self._pack(self._block, self._targets, *addresses)

    def parameters(self) -> Any:
        """Native kernel node parameters that read this table."""
        return self._kernels.parameters(self.function, self.grid, self.address)

    def launch(self, target: Any) -> Any:
        """Launches the kernel on its own; returns the native result."""
        return self._launch(
            self.function.native, *self.grid, 1, ptx.COPY_THREADS, 1, 1, 0, target, self.address, 0
        )[0]


def _tables(kernels: Kernels, sizes: Sequence[int]) -> list[tuple[Table, int, int]]:
    """As few tables as hold the entries, with the range of entries that each has."""
    most = ptx.COPY_CAPACITIES[-1]
    return [
        (Table(kernels, sizes[start : start + most]), start, min(start + most, len(sizes)))
        for start in range(0, len(sizes), most)
    ]


class Beside:
    """Copy kernels before and after a launch of the graph's own executable."""

    def __init__(
        self,
        kernels: Kernels,
        executable: CudaExecutable,
        inputs: Sequence[Entry],
        results: Sequence[Entry],
    ) -> None:
        self._kernels, self._executable = kernels, executable
        self._device = executable.device
        self._in = _tables(kernels, [entry.nbytes for entry in inputs])
        self._out = _tables(kernels, [entry.nbytes for entry in results])
        for table, start, stop in self._in:
            table.destinations([entry.address for entry in inputs[start:stop]])
        for table, start, stop in self._out:
            table.sources([entry.address for entry in results[start:stop]])
        self._launch = kernels.work.cu.raw("cuGraphLaunch")

    def __call__(self, sources: Sequence[int], destinations: Sequence[int], target: Any) -> Any:
        """Launches; returns the native result."""
        with self._kernels.work.activated(self._device):
            for table, start, stop in self._in:
                table.sources(sources[start:stop])
                code = table.launch(target)
                if code:
                    return code
            code = self._launch(self._executable.native, target)[0]
            if code:
                return code
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


class Embedded:
    """An executable of a copy of the graph, with a copy kernel before it and one after it.

    The kernel before it also stores the addresses of the results into a table in device memory,
    which the kernel after it reads: so one kernel's parameters are set a launch, not two.
    """

    def __init__(
        self,
        kernels: Kernels,
        executable: CudaExecutable,
        inputs: Sequence[Entry],
        results: Sequence[Entry],
    ) -> None:
        work, self._device = kernels.work, executable.device
        self._in_context = work.device_count > 1
        self._work = work
        count = len(results)
        self._letters: Allocation | None = None
        mailbox = 0
        if count:
            self._letters = Allocation(work.memory, 24 * count, executable.device)
            mailbox = self._letters.address
        sizes = [entry.nbytes for entry in inputs] + [ptx.STORE] * count
        addresses = [entry.address for entry in inputs]
        addresses += [mailbox + 8 * (count + place) for place in range(count)]
        self._tables = _tables(kernels, sizes)
        for table, start, stop in self._tables:
            table.destinations(addresses[start:stop])
            table.sources([0] * (stop - start))
        self._graph, self._native, self._nodes = self._build(kernels, executable, results, mailbox)
        self._set = work.cu.raw("cuGraphExecKernelNodeSetParams")
        self._launch = work.cu.raw("cuGraphLaunch")
        # What the graph uses lives until the launches of this executable are waited for, too.
        kept = (self._letters, kernels, executable.template.owned)
        self._end = weakref.finalize(
            self, _destroy, work, executable.device, self._native, self._graph, kept
        )
        self._end.atexit = False

    def _build(
        self, kernels: Kernels, executable: CudaExecutable, results: Sequence[Entry], mailbox: int
    ) -> tuple[Any, Any, list[tuple[Table, int, int, Any, Any]]]:
        work, about = kernels.work, f"a staged copy of {executable.template.subject}"
        calls, count = work.cu, len(results)
        with work.relaxed(), work.activated(executable.device):
            graph = calls.cuGraphClone(executable.template.live().graph, about=about)
            try:
                nodes, edges = calls.nodes(graph, about=about), calls.edges(graph, about=about)
                after = {int(node) for _, node in edges}
                before = {int(node) for node, _ in edges}
                roots = [node for node in nodes if int(node) not in after]
                leaves = [node for node in nodes if int(node) not in before]
                staged = []
                for table, start, stop in self._tables:
                    parameters = table.parameters()
                    node = calls.cuGraphAddKernelNode(graph, [], 0, parameters, about=about)
                    if roots:
                        calls.cuGraphAddDependencies(
                            graph,
                            [node] * len(roots),
                            roots,
                            calls.edge_data(None, len(roots)),
                            len(roots),
                            about=about,
                        )
                    staged.append((table, start, stop, node, parameters))
                if count:
                    self._write_letters(kernels, results, mailbox)
                    arguments = Arguments(kernels.through, [mailbox, count])
                    grid = kernels.grid([entry.nbytes for entry in results])
                    last = leaves or [node for *_, node, _ in staged]
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
        """Launches; returns the native result."""
        values = (*sources, *destinations)
        for table, start, stop, node, parameters in self._nodes:
            table.sources(values[start:stop])
            code = self._set(self._native, node, parameters)[0]
            if code:
                return code
        if self._in_context:
            with self._work.activated(self._device):
                return self._launch(self._native, target)[0]
        return self._launch(self._native, target)[0]

    def rewrite(self, node: Any, parameters: Any) -> None:
        """Gives its copy of a node of the graph other parameters, from the next launch on."""
        about = "a staged executable"
        copied = self._work.cu.cuGraphNodeFindInClone(node, self._graph, about=about)
        self._work.cu.cuGraphExecKernelNodeSetParams(self._native, copied, parameters, about=about)

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
        with work.relaxed(), work.activated(device):
            work.cu.cuGraphExecDestroy(native, about="a staged executable")
            work.cu.cuGraphDestroy(graph, about="a staged graph")
        kept = None

    reclaim.dispose(destroy)
