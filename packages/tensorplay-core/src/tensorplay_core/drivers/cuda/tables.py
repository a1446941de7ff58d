"""The copy kernels of a device, and the tables that tell one what to copy."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import kernels as ptx

if TYPE_CHECKING:
    from .contexts import CudaDevice
    from .work import Work

__all__ = ["Entry", "Kernels", "Table", "tables"]


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
            for table, start, stop in tables(self, [size for *_, size in copies]):
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

    Attributes:
        start: Where it is in the host's memory; ``address`` is that of the kernel's parameters.
    """

    def __init__(self, kernels: Kernels, sizes: Sequence[int]) -> None:
        self._kernels = kernels
        capacity = ptx.copy_capacity(len(sizes))
        self.function = kernels.functions[capacity]
        self.grid = kernels.grid([size for size in sizes if size != ptx.STORE] or [1])
        self.grid = self.grid[0], max(1, len(sizes))
        self._block = (ctypes.c_uint64 * (3 * capacity))()
        self.start = ctypes.addressof(self._block)
        self._pointer = (ctypes.c_void_p * 1)(self.start)
        self.address = ctypes.addressof(self._pointer)
        self._targets = 8 * capacity
        self._pack = struct.Struct(f"<{len(sizes)}Q").pack_into
        self._pack(self._block, 16 * capacity, *sizes)
        self._launch = kernels.work.cu.raw("cuLaunchKernel")

    def memory(self) -> memoryview:
        """The whole table as bytes: first what each entry copies from, 8 bytes each."""
        return memoryview(self._block).cast("B")

    def sources(self, addresses: Sequence[int]) -> None:
        """Sets what each entry copies from."""
        self._pack(self._block, 0, *addresses)

    def destinations(self, addresses: Sequence[int]) -> None:
        """Sets what each entry copies to."""
        self._pack(self._block, self._targets, *addresses)

    def parameters(self) -> Any:
        """Native kernel node parameters that read this table."""
        return self._kernels.parameters(self.function, self.grid, self.address)

    def hot_parameters(self) -> Any:
        """The same, as ``hot.set_kernel`` takes them."""
        return self._kernels.work.hot.kernel_parameters(
            self.function.native, self.grid, ptx.COPY_THREADS, self.address
        )

    def launch(self, target: Any) -> Any:
        """Launches the kernel on its own; returns the native result."""
        return self._launch(
            self.function.native, *self.grid, 1, ptx.COPY_THREADS, 1, 1, 0, target, self.address, 0
        )[0]


def tables(kernels: Kernels, sizes: Sequence[int]) -> list[tuple[Table, int, int]]:
    """As few tables as hold the entries, with the range of entries that each has."""
    most = ptx.COPY_CAPACITIES[-1]
    return [
        (Table(kernels, sizes[start : start + most]), start, min(start + most, len(sizes)))
        for start in range(0, len(sizes), most)
    ]
