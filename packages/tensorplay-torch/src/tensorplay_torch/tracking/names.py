"""What the code of functions keeps under names: in closures, globals, defaults and classes.

A replay runs no Python. What code rebinds or fills in each call would stay as the capture left it,
so that is seen, named and undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from .held import Held

__all__ = ["MISSING", "Names", "Place"]

MISSING = object()
"""What is at a place where nothing is."""


class Place(NamedTuple):
    """Where code keeps a value."""

    name: str
    read: Callable[[], Any]
    """Finds what is there now; ``MISSING`` if nothing is."""
    write: Callable[[Any], None] | None
    """Puts something there; None if code cannot do so either."""


class Names:
    """What is at ``places`` now.

    Args:
        places: Some.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = [(place, Held(place.read())) for place in places]

    def changes(self) -> Iterator[str]:
        """What is otherwise now, by name."""
        for place, held in self._places:
            yield from (f"{place.name}{rest}" for rest in held.changes(place.read()))

    def restore(self) -> None:
        """Puts everything back, containers in place."""
        for place, held in self._places:
            held.restore()
            if place.write is not None and place.read() is not held.value:
                place.write(held.value)
