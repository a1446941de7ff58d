"""Memory of pools: segments, and the blocks that are served from them.

Blocks come back when their last holder is collected, so at any moment and in any thread, perhaps
in the middle of an allocation. Finalizers therefore only append to a queue, and never wait.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tensorplay_core.protocols import PoolStatistics

from .ledger import Ledger, Storage
from .turn import Turn

if TYPE_CHECKING:
    from .streams import Stream

__all__ = ["Block", "Pool", "PoolId"]

ALIGNMENT = 64


class PoolId(NamedTuple):
    """The public name of a pool."""

    driver: str
    owner: int
    """Serial number of the driver object that gave it out."""
    serial: int


class Segment:
    """One piece of memory, and what of it is free as sorted ``[offset, size]`` pairs."""

    __slots__ = ("free", "memory")

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)
        self.free: list[list[int]] = [[0, size]]

    @property
    def unused(self) -> bool:
        """True if no block of it is handed out."""
        return self.free == [[0, len(self.memory)]]

    def take(self, place: int, size: int) -> int:
        """Cuts ``size`` bytes off free piece ``place``; returns their offset."""
        piece = self.free[place]
        offset = piece[0]
        if piece[1] == size:
            del self.free[place]
        else:
            piece[0] += size
            piece[1] -= size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Frees a block and joins it with free neighbours."""
        free = self.free
        place = next((i for i, piece in enumerate(free) if piece[0] > offset), len(free))
        free.insert(place, [offset, size])
        for left in (place, place - 1):
            if 0 <= left < len(free) - 1 and sum(free[left]) == free[left + 1][0]:
                free[left][1] += free.pop(left + 1)[1]


class Piece(NamedTuple):
    """Where a block is, and the while bodies it was allocated in."""

    segment: Segment
    offset: int
    size: int
    loops: tuple[object, ...]


class Block(Storage):
    """Memory of a pool, handed out."""

    __slots__ = ("_piece", "_pool")

    def __init__(self, pool: Pool, piece: Piece, born: int) -> None:
        super().__init__(born)
        self._pool, self._piece = pool, piece

    def view(self, nbytes: int) -> memoryview:
        """Its first ``nbytes`` bytes. The view keeps the segment alive, not the block."""
        segment, offset, *_ = self._piece
        return memoryview(segment.memory)[offset : offset + nbytes]

    def __del__(self) -> None:
        if hasattr(self, "_pool"):  # Ctrl-C may have kept it from being made.
            self._pool.give(self._piece)


class Pool:
    """Segments that grow by what is asked of them, and serve the best fit first.

    A block from outside a while body that is let go inside it is not served again before the body
    ends: work of the body that reads it comes first in the recording, but again in the next run.

    Attributes:
        id: Its public name.
        device: ``"host"``.
        turn: Held by whoever runs or poisons work in its memory: graphs that share a pool take
            turns.
        stream: The side stream of captures into it, once one was asked for.
        released: True once no graph holds it any more.
    """

    device = "host"

    def __init__(self, identity: PoolId, ledger: Ledger) -> None:
        self.id = identity
        self.turn = Turn()
        self.stream: Stream | None = None
        self._ledger = ledger
        self._segments: list[Segment] = []
        self._returned: deque[Piece] = deque()
        self._put_off: dict[object, list[Piece]] = {}
        # Not reentrant: a finalizer that runs inside it in the same thread must not get in.
        self._lock = threading.Lock()
        self._allocated = self._peak = self._count = 0
        self.released = False

    def __repr__(self) -> str:
        return f"<host pool {self.id.serial}>"

    def __del__(self) -> None:
        # Nobody released it, and nobody can any more. Its blocks are gone, or go with it in a cycle
        # and may yet come back: what they find then is no segment to give back again.
        segments, self._segments = getattr(self, "_segments", []), []
        for segment in segments:
            self._ledger.give(len(segment.memory))

    def allocate(self, nbytes: int, born: int, loops: tuple[object, ...] = ()) -> Block:
        """A block of at least ``nbytes`` bytes, contents undefined.

        Args:
            nbytes: How many.
            born: Serial number of the capture.
            loops: The while bodies that are open around it.

        Raises:
            PoolExhausted: The driver's limit does not allow a new segment.
        """
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with self._lock:
            self._drain()
            fits = [
                (piece[1], segment, place)
                for segment in self._segments
                for place, piece in enumerate(segment.free)
                if piece[1] >= size
            ]
            if fits:
                _, segment, place = min(fits, key=lambda fit: fit[0])
            else:
                self._ledger.take(size, repr(self))
                segment, place = Segment(size), 0
                self._segments.append(segment)
            offset = segment.take(place, size)
            self._allocated += size
            self._peak = max(self._peak, self._allocated)
            self._count += 1
        block = Block(self, Piece(segment, offset, size, loops), born)
        self._settle()
        return block

    def give(self, piece: Piece) -> None:
        """Takes a block back. Safe in a finalizer."""
        self._returned.append(piece)
        self._settle()

    def enter_loop(self, loop: object) -> None:
        """A while body that may allocate here begins."""
        with self._lock:
            self._drain()
            self._put_off.setdefault(loop, [])
        self._settle()

    def leave_loop(self, loop: object) -> None:
        """It ended: what was put off for it is free, unless another one is open around it."""
        with self._lock:
            self._returned.extend(self._put_off.pop(loop, ()))
        self._settle()

    def release(self) -> None:
        """No graph holds it: every segment goes back once no block of it is handed out."""
        with self._lock:
            self.released = True
            self._drain()
        self._settle()

    def statistics(self) -> PoolStatistics:
        """Its memory now."""
        with self._lock:
            self._drain()
            reserved = sum(len(segment.memory) for segment in self._segments)
            found = PoolStatistics(reserved, self._allocated, self._peak, self._count)
        self._settle()
        return found

    def _settle(self) -> None:
        # Whoever holds the lock meanwhile drains after letting go, so nothing is left behind.
        while self._returned:
            taken: list[bool] = []
            try:
                # In one step of the interpreter: an interrupt between the lock and a note that it
                # was taken would leave it locked for good.
                taken.extend(map(self._lock.acquire, (False,)))
                if not taken[0]:
                    return
                self._drain()
            finally:
                if any(taken):
                    self._lock.release()

    def _drain(self) -> None:
        while self._returned:
            piece = self._returned.popleft()
            foreign = next((loop for loop in self._put_off if loop not in piece.loops), None)
            if foreign is not None:
                self._put_off[foreign].append(piece)
                continue
            piece.segment.give(piece.offset, piece.size)
            self._allocated -= piece.size
            self._count -= 1
        if self.released:
            for segment in [one for one in self._segments if one.unused]:
                self._segments.remove(segment)
                self._ledger.give(len(segment.memory))
