"""Things that are looked at in turn, one a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Protocol

__all__ = ["Entry", "in_turn"]


class Entry(Protocol):
    """One of them."""

    @property
    def changed(self) -> bool:
        """True if it is not what it was."""


def in_turn(entries: Sequence[Entry]) -> Callable[[], bool]:
    """A function that looks at the next one: True if that is what it was.

    One that changed keeps its turn, so that whoever looks again is told again.
    """
    if not entries:
        return lambda: True
    following = cycle(entries).__next__
    entry = following()

    def unchanged() -> bool:
        nonlocal entry
        if entry.changed:
            return False
        entry = following()
        return True

    return unchanged
