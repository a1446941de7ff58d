"""Ids of pools. Those that are gone are remembered as ranges: torch counts up, and most end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from tensorplay_core.errors import PoolMismatch

if TYPE_CHECKING:
    import torch

__all__ = ["Gone", "Native", "Ranges", "is_native", "mismatch"]

Native: TypeAlias = tuple[int, int]


class Ranges:
    """A set of integers that takes little memory where they follow one another."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._stops[place]

    def __iter__(self) -> Iterator[int]:
        for start, stop in zip(self._starts, self._stops, strict=True):
            yield from range(start, stop)

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._starts)

    def add(self, number: int) -> None:
        """Takes one in. Idempotent."""
        after = bisect_right(self._starts, number)
        if after and number < self._stops[after - 1]:
            return
        joins_before = after > 0 and self._stops[after - 1] == number
        joins_after = after < len(self._starts) and self._starts[after] == number + 1
        if joins_before and joins_after:
            self._stops[after - 1] = self._stops[after]
            del self._starts[after], self._stops[after]
        elif joins_before:
            self._stops[after - 1] = number + 1
        elif joins_after:
            self._starts[after] = number
        else:
            self._starts.insert(after, number)
            self._stops.insert(after, number + 1)


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

    def __len__(self) -> int:
        """How many ranges."""
        return sum(map(len, self._ranges.values()))

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
