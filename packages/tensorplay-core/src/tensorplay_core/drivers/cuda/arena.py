"""Best-fit allocation inside segments of memory, by stream. It knows addresses, not devices.

A free block serves only the stream whose work used it last: what that stream does next comes after
that use. Blocks are given back by finalizers, at any moment and in any thread, so giving one back
only appends to a queue, and never waits.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator

from tensorplay_core.protocols import PoolStatistics

__all__ = ["ALIGNMENT", "GRANULARITY", "Arena", "Block"]

ALIGNMENT = 512
"""Bytes that block sizes are rounded up to."""

GRANULARITY = 2 << 20
"""Bytes that segment sizes are rounded up to: the device maps memory in pages of 2 MiB."""


class Block:
    """One piece of a segment, used or free, linked to its neighbours."""

    __slots__ = ("address", "after", "before", "free", "key", "segment", "size")

    def __init__(self, address: int, size: int, segment: Segment, key: Hashable) -> None:
        self.address, self.size, self.segment, self.key = address, size, segment, key
        self.free = False
        self.before: Block | None = None
        self.after: Block | None = None


class Segment:
    """One piece of memory as the device gave it."""

    __slots__ = ("address", "first", "size")

    def __init__(self, address: int, size: int, key: Hashable) -> None:
        self.address, self.size = address, size
        self.first = Block(address, size, self, key)

    def blocks(self) -> Iterator[Block]:
        """Its pieces in the order of their addresses."""
        block: Block | None = self.first
        while block is not None:
            yield block
            block = block.after


class Arena:
    """Segments that grow on demand and are held until the arena is released.

    Args:
        grow: Takes a size in bytes, returns the address of that much new memory, or raises.
        shrink: Takes an address that ``grow`` returned and the size, gives the memory back.
    """

    def __init__(self, grow: Callable[[int], int], shrink: Callable[[int, int], None]) -> None:
        self._grow, self._shrink = grow, shrink
        # Not reentrant: a finalizer that runs inside it in the same thread must not get in.
        self._lock = threading.Lock()
        self._returned: deque[Block] = deque()
        self._segments: dict[int, Segment] = {}
        self._free: dict[Hashable, list[tuple[int, int]]] = {}
        self._blocks: dict[int, Block] = {}
        self._folded: dict[Hashable, Hashable] = {}
        self._allocated = self._peak = self._count = 0
        self._released = self._unsettled = False

    def allocate(self, nbytes: int, key: Hashable) -> Block:
        """A block of at least ``nbytes`` bytes for work on the stream called ``key``.

        Raises:
            PoolExhausted: ``grow`` found no memory.
        """
        size = max(-(-nbytes // ALIGNMENT), 1) * ALIGNMENT
        with self._lock:
            self._drain()
            block = self._fit(size, key) or self._new_segment(size, key)
            self._split(block, size)
            self._allocated += block.size
            self._peak = max(self._peak, self._allocated)
            self._count += 1
        self._settle()
        return block

    def give(self, block: Block) -> None:
        """Takes a block back. Safe in a finalizer."""
        self._returned.append(block)
        self._settle()

    def lend(self, lender: Hashable, borrower: Hashable) -> None:
        """What is free for ``lender`` now is free for ``borrower``; later returns are not.

        For the body of a conditional: memory that its parent lets go while the body is captured
        may be read again by the body's next run, so the body must not take it.
        """
        with self._lock:
            self._drain()
            self._hand_over(lender, borrower)
        self._settle()

    def fold(self, borrower: Hashable, lender: Hashable) -> None:
        """What is free for ``borrower``, now and later, is free for ``lender``."""
        with self._lock:
            self._drain()
            self._hand_over(borrower, lender)
            self._folded[borrower] = lender
        self._settle()

    def unite(self, key: Hashable) -> None:
        """All that is free is free for ``key``: a new capture, whose graph runs after the others.

        So memory that one capture's forks and bodies left is there for the next capture.
        """
        with self._lock:
            self._drain()
            self._folded.clear()
            self._free.clear()
            self._blocks.clear()
            for segment in self._segments.values():
                blocks = list(segment.blocks())
                free = [block for block in blocks if block.free]
                for block in blocks:
                    block.key, block.free = key, False
                for block in free:  # In the order of addresses, so each joins the one before.
                    self._put(block)
        self._settle()

    def release(self) -> None:
        """No graph holds it: every segment goes back once no block of it is handed out.

        Safe in a finalizer.
        """
        self._released = self._unsettled = True
        self._settle()

    def revive(self) -> None:
        """A graph holds it again."""
        self._released = False

    def statistics(self) -> PoolStatistics:
        """Its memory now, in bytes; blocks count with their rounded size."""
        with self._lock:
            self._drain()
            reserved = sum(segment.size for segment in self._segments.values())
            found = PoolStatistics(reserved, self._allocated, self._peak, self._count)
        self._settle()
        return found

    def _settle(self) -> None:
        # Whoever holds the lock meanwhile settles after letting go, so nothing is left behind.
        while (self._returned or self._unsettled) and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        self._unsettled = False
        while self._returned:
            block = self._returned.popleft()
            self._allocated -= block.size
            self._count -= 1
            while block.key in self._folded:
                block.key = self._folded[block.key]
            self._put(block)
        if self._released:
            for address, segment in list(self._segments.items()):
                blocks = list(segment.blocks())
                if all(block.free for block in blocks):
                    for block in blocks:
                        self._take(block)
                    del self._segments[address]
                    self._shrink(address, segment.size)

    def _fit(self, size: int, key: Hashable) -> Block | None:
        free = self._free.get(key, [])
        place = bisect_left(free, (size, 0))
        if place == len(free):
            return None
        block = self._blocks[free[place][1]]
        self._take(block)
        return block

    def _new_segment(self, size: int, key: Hashable) -> Block:
        whole = -(-size // GRANULARITY) * GRANULARITY
        segment = Segment(self._grow(whole), whole, key)
        self._segments[segment.address] = segment
        return segment.first

    def _split(self, block: Block, size: int) -> None:
        if block.size == size:
            return
        rest = Block(block.address + size, block.size - size, block.segment, block.key)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size = rest, size
        self._put(rest)

    def _put(self, block: Block) -> None:
        """Frees a block, joined with free neighbours of the same stream."""
        after, before = block.after, block.before
        if after is not None and after.free and after.key == block.key:
            self._take(after)
            self._absorb(block, after)
        if before is not None and before.free and before.key == block.key:
            self._take(before)
            self._absorb(before, block)
            block = before
        block.free = True
        self._blocks[block.address] = block
        insort(self._free.setdefault(block.key, []), (block.size, block.address))

    def _take(self, block: Block) -> None:
        free = self._free[block.key]
        del free[bisect_left(free, (block.size, block.address))]
        del self._blocks[block.address]
        block.free = False

    @staticmethod
    def _absorb(block: Block, after: Block) -> None:
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block

    def _hand_over(self, giver: Hashable, taker: Hashable) -> None:
        for _, address in self._free.pop(giver, []):
            block = self._blocks.pop(address)
            block.free, block.key = False, taker
            self._put(block)
