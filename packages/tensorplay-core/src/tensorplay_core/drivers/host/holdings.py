"""What a graph keeps alive, and what it only watches."""

from __future__ import annotations

import sys
import weakref

from tensorplay_core.places import user_place

from .ledger import Storage

__all__ = ["Holdings", "Witness"]


class Witness:
    """Storage that is held weakly, and where it was let go.

    Args:
        storage: Which.
        what: What to call it.
    """

    __slots__ = ("_gone", "_what", "storage")

    def __init__(self, storage: Storage, what: str) -> None:
        self._what, self._gone = what, ""
        self.storage = weakref.ref(storage, self._note)

    def _note(self, _: object) -> None:
        if not sys.is_finalizing():
            self._gone = user_place()

    def __str__(self) -> str:
        return f"{self._what}, let go at {self._gone}" if self._gone else self._what


class Holdings:
    """What a graph keeps alive, or watches: shared by a template and its executables.

    Attributes:
        kept: Whatever lives as long as the graph can run.
        watched: Storage held weakly and checked at each replay.
    """

    __slots__ = ("_known", "kept", "watched")

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.watched: list[Witness] = []
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
        if all(one.storage() is not storage for one in self.watched):
            self.watched.append(Witness(storage, what))
