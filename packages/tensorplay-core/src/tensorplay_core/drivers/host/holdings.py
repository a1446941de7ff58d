"""What a graph keeps alive, and what it only watches."""

from __future__ import annotations

import weakref

from .ledger import Storage

__all__ = ["Holdings"]


class Holdings:
    """What a graph keeps alive, or watches: shared by a template and its executables.

    Attributes:
        kept: Whatever lives as long as the graph can run.
        watched: Storage held weakly and checked at each replay, with what to call it.
    """

    __slots__ = ("_known", "kept", "watched")

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.watched: list[tuple[weakref.ref[Storage], str]] = []
        self._known: set[int] = set()

    def keep(self, owned: object) -> None:
        """Keeps ``owned``, once."""
        if id(owned) not in self._known:
            self._known.add(id(owned))
            self.kept.append(owned)

    def include(self, child: Holdings) -> None:
        """Keeps and watches what a child graph does."""
        self.keep(child)
        self.watched.extend(child.watched)

    def watch(self, storage: Storage, what: str) -> None:
        """Watches ``storage``, once."""
        if all(ref() is not storage for ref, _ in self.watched):
            self.watched.append((weakref.ref(storage), what))
