"""Which inputs of a staged launch overlap the buffers it is about to overwrite."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["Separation"]

_REMEMBERED = 1 << 16


class Separation:
    """All copies of a staged launch run at once, so none may read what another writes.

    An input that is its own buffer is fine: it is copied onto itself. One that is (part of)
    another's buffer, or partly its own, has to be copied apart first.

    Args:
        buffers: ``(address, bytes)`` of each buffer, in the order of the inputs.

    Attributes:
        known_apart: True if every one of the given addresses is known to lie apart from every
            buffer. False means no more than that ``clashes`` has to be asked.
    """

    def __init__(self, buffers: Sequence[tuple[int, int]]) -> None:
        self._buffers = tuple(buffers)
        self._sorted = sorted((start, start + size) for start, size in buffers if size)
        self._starts = [start for start, _ in self._sorted]
        self._longest = max((size for _, size in buffers), default=0)
        # Addresses from which even the longest copy reads none of the buffers: in steady state
        # inputs come from a few places over and over, and one look-up each settles it.
        self._safe: set[int] = set()
        self.known_apart = self._safe.issuperset

    def clashes(self, addresses: Sequence[int]) -> list[int]:
        """Places of the inputs that have to be copied apart first."""
        found = []
        for place, address in enumerate(addresses):
            if address in self._safe:
                continue
            start, size = self._buffers[place]
            if not self._touches(address, self._longest):
                if len(self._safe) >= _REMEMBERED:
                    self._safe.clear()
                self._safe.add(address)
            elif address != start and self._touches(address, size):
                found.append(place)
        return found

    def _touches(self, address: int, size: int) -> bool:
        # The buffers do not overlap, so of those that begin before the end the last ends last.
        place = bisect_right(self._starts, address + size - 1) - 1
        return size > 0 and place >= 0 and self._sorted[place][1] > address
