"""What CuPy allocates from inside a capture: the graph's own pool, by stream."""

from __future__ import annotations

from typing import Any

import cupy

from tensorplay_core.errors import PoolError

from .base import Base

__all__ = ["PoolAllocator", "block_of"]


class PoolAllocator:
    """An allocator as ``cupy.cuda.using_allocator`` takes it, for one capture.

    Blocks come from the pool of the capture that CuPy's current stream belongs to (outside of it:
    from the device), so what one stream lets go is not handed to another. A miss grows the pool in
    every capture mode. Each block goes back to its pool with the last array on it.

    Attributes:
        blocks: Addresses of the blocks handed out.
    """

    def __init__(self, base: Base) -> None:
        self._base = base
        self.blocks: set[int] = set()
        self._sealed = False

    def __call__(self, nbytes: int) -> Any:
        """Memory of at least ``nbytes`` bytes.

        Raises:
            PoolExhausted: The device has no memory left.
            PoolError: The capture is over.
        """
        if self._sealed:
            raise PoolError(
                doing="allocating for",
                subject=f"{nbytes} bytes for a graph",
                met="its capture is over, and its memory is the replays' from then on",
                remedy="Do not keep cupy.cuda.get_allocator() of a capture; outside, CuPy's own "
                "allocator is current again.",
            )
        memory = cupy.cuda.memory
        if not nbytes:
            return memory.MemoryPointer(memory.Memory(0), 0)
        device = cupy.cuda.runtime.getDevice()
        stream = int(cupy.cuda.get_current_stream(device).ptr)
        with self._base.runtime.using_stream(stream, device):
            block = self._base.driver.empty(nbytes, "|u1", device)
        address = int(block.__cuda_array_interface__["data"][0])
        self.blocks.add(address)
        held = memory.UnownedMemory(address, nbytes, block, device)
        return memory.MemoryPointer(held, 0)

    def seal(self) -> None:
        """No more memory: the capture is over."""
        self._sealed = True


def block_of(array: Any) -> tuple[int, int]:
    """Address and size of the block of memory that a CuPy array is on."""
    memory = array.data.mem
    return int(memory.ptr), int(memory.size)
