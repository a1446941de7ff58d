"""Device memory: what holds it, and how it goes back."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from tensorplay_core import reclaim

if TYPE_CHECKING:
    from .arena import Arena, Block
    from .contexts import Contexts, CudaDevice

__all__ = ["Allocation", "Memory", "PoolBlock"]


class Memory:
    """Allocates and frees whole pieces of device memory, and counts the bytes that are held.

    Attributes:
        held_bytes: Bytes taken from the devices and not given back.
    """

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        # Reentrant: a finalizer may give memory back inside it.
        self._lock = threading.RLock()
        self.held_bytes = 0

    def take(self, nbytes: int, device: CudaDevice, *, about: str) -> int:
        """The address of ``nbytes`` bytes. Legal beside and inside captures.

        Raises:
            PoolExhausted: The device has no memory left.
        """
        contexts = self._contexts
        with contexts.inside(device):
            address = int(contexts.cu.cuMemAlloc(max(nbytes, 1), about=about))
        with self._lock:
            self.held_bytes += nbytes
        return address

    def give(self, address: int, nbytes: int, device: CudaDevice) -> None:
        """Frees it, once no capture is live. Work that uses it is waited for."""

        def free() -> None:
            contexts = self._contexts
            with self._lock:
                self.held_bytes -= nbytes
            with contexts.inside(device):
                contexts.cu.cuMemFree(address, about=f"memory of {device}")

        reclaim.dispose(free)


class Allocation:
    """Memory outside any pool, freed with its last reference.

    Attributes:
        address: Where it is.
        born: 0: it was not born in a capture.
    """

    born = 0

    def __init__(self, memory: Memory, nbytes: int, device: CudaDevice) -> None:
        self.address = memory.take(nbytes, device, about=f"{nbytes} bytes on {device}")
        end = weakref.finalize(self, memory.give, self.address, nbytes, device)
        end.atexit = False

    def __repr__(self) -> str:
        return f"<memory at {self.address:#x}>"


class PoolBlock:
    """A block of a pool, given back with its last reference.

    Attributes:
        address: Where it is.
        born: Serial number of the capture it was allocated in.
    """

    def __init__(self, arena: Arena, block: Block, born: int) -> None:
        self.address, self.born = block.address, born
        end = weakref.finalize(self, arena.give, block)
        end.atexit = False

    def __repr__(self) -> str:
        return f"<pool memory at {self.address:#x}>"
