"""Ids of pools. Those that are gone are remembered as ranges: torch counts up, and most end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from tensorplay_core.errors import PoolMismatch

if TYPE_CHECKING:
    import torch

__all__ = ["Gone", "Native", "Ranges", "is_native", "mismatch"]

Native: TypeAlias = tuple[int, int]


class Ranges:
    """A set of integers that takes little memory where they follow one another.

    A change puts another list in the place of this one: a finaliser or another thread that looks
    finds it whole, and who looks while one changes it goes on with what was there.
    """

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __contains__(self, number: int) -> bool:
        ranges = self._ranges
        place = bisect_right(ranges, number, key=itemgetter(0)) - 1
        return place >= 0 and number < ranges[place][1]

    def __iter__(self) -> Iterator[int]:
        for start, stop in self._ranges:
            yield from range(start, stop)

    @property
    def count(self) -> int:
        """Of ranges."""
        return len(self._ranges)

    def add(self, number: int) -> None:
        """Takes one in. Idempotent."""
        ranges = self._ranges
        first = last = bisect_right(ranges, number, key=itemgetter(0))
        start, stop = number, number + 1
        if first and number <= ranges[first - 1][1]:
            first -= 1
            start, stop = ranges[first][0], max(stop, ranges[first][1])
        if last < len(ranges) and ranges[last][0] == stop:
            stop = ranges[last][1]
            last += 1
        self._ranges = [*ranges[:first], (start, stop), *ranges[last:]]


class Gone:
    """Ids, each of some kind. Those that are no kind with a number are never in it.

    An id is a pair with a number: torch's have it first or second beside a zero.
    """

    def __init__(self) -> None:
        self._ranges: dict[Hashable, Ranges] = {}

    def __contains__(self, id: object) -> bool:
        split = _split(id)
        if split is None:
            return False
        kind, number = split
        found = self._ranges.get(kind)
        return found is not None and number in found

    @property
    def count(self) -> int:
        """Of ranges."""
        return sum(ranges.count for ranges in self._ranges.values())

    def add(self, id: Hashable) -> None:
        """Takes one in. Idempotent."""
        split = _split(id)
        if split is not None:
            kind, number = split
            self._ranges.setdefault(kind, Ranges()).add(number)


def _split(id: object) -> tuple[Hashable, int] | None:
    if isinstance(id, tuple) and len(id) == 2:
        first, second = id
        if type(second) is int and (first == 0 or isinstance(first, str)):
            return first, second
        if type(first) is int and second == 0:
            return None, first
    return None


def is_native(id: object) -> TypeGuard[Native]:
    """True for what torch's CUDA allocator would give out as an id."""
    return (
        isinstance(id, tuple)
        and len(id) == 2
        and all(isinstance(part, int) and part >= 0 for part in id)
        and (id[0] == 0) != (id[1] == 0)
    )


def mismatch(token: object, met: str, device: torch.device) -> PoolMismatch:
    """The error for a token that names no pool of the device."""
    return PoolMismatch(
        doing="sharing",
        subject=f"pool {token!r}",
        met=met,
        remedy=f"Pass None, an id from graph_pool_handle({str(device)!r}), a captured graph, or "
        "a torch.cuda.MemPool of that device.",
    )
