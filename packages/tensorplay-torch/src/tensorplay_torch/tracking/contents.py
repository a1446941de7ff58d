"""Containers as they were at one moment: to name what is different in them later, or to undo it.

``Contents`` looks into every dict, list, tuple, deque, set, NumPy array, namespace and dataclass
that its roots lead to, however deep and also in circles. ``Held`` tells whether a value is the
same; this tells what became of each entry. Tensors are compared by identity: their values are
memory, which others look after. So are other objects, whose attributes are not looked at.
"""

from __future__ import annotations

import enum
import numbers
import types
from collections import deque
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any, NamedTuple

import torch

from .containers import Entries, Kind, entries_of, is_of_numpy, refill
from .fixed import equal_arrays, is_constant, same

__all__ = ["Change", "Contents", "Difference"]

METHODS = (types.MethodType, types.BuiltinMethodType)
ABSENT = object()
AGAIN = "inside the capture, and a replay would not change it again"


class Change(enum.Enum):
    """What became of an entry."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Difference(NamedTuple):
    """One difference.

    Attributes:
        met: A clause that says it.
        change: Its kind.
    """

    met: str
    change: Change


class Contents:
    """See the module.

    Args:
        roots: Containers; what they lead to is kept as it is now.
        said: What errors call a key.
    """

    def __init__(self, *roots: Any, said: Callable[[Any], str] = repr) -> None:
        self._kept: dict[int, tuple[Any, Entries]] = {}
        self._said = said
        waiting = deque(roots)
        while waiting:
            value = waiting.popleft()
            if id(value) in self._kept or (entries := entries_of(value)) is None:
                continue
            self._kept[id(value)] = (value, entries)
            waiting.extend((entries.named or {}).values())

    def of(self, value: Any) -> dict[Any, Any]:
        """What ``value`` held by key; an empty dict if it is nothing that was kept."""
        entries = self._kept_of(value)
        return (entries and entries.named) or {}

    def restore(self) -> None:
        """Puts everything back, in the same containers. Idempotent."""
        for value, entries in self._kept.values():
            refill(value, entries)

    def tensors(self, owner: str, entries: dict[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that ``entries`` led to, with what errors call them."""
        waiting, seen = deque([(owner, entries)]), set()
        while waiting:
            owner, entries = waiting.popleft()
            for key, value in entries.items():
                said = f"{self._said(key)} for {owner}"
                if isinstance(value, torch.Tensor):
                    yield said, value
                elif id(value) not in seen:
                    seen.add(id(value))
                    waiting.append((said, self.of(value)))

    def differences(
        self,
        owner: str,
        was: dict[Any, Any],
        now: dict[Any, Any],
        is_born: Callable[[torch.Tensor], bool],
    ) -> Iterator[Difference]:
        """How the entries of ``now`` differ from those of ``was``, and what they lead to.

        Args:
            owner: What errors call the container.
            was: What was kept of it.
            now: What it holds.
            is_born: True for a tensor whose memory was born in the capture.
        """
        waiting = deque([(owner, was, now)])
        seen: set[tuple[int, int]] = set()
        while waiting:
            owner, was, now = waiting.popleft()
            for key, value in now.items():
                old = was.get(key, ABSENT)
                before = self._kept_of(old)
                if old is value and before is None:
                    continue
                said, after = f"{self._said(key)} for {owner}", entries_of(value)
                if old is ABSENT or before is None or after is None:
                    yield from _of_one(said, old, value, is_born)
                elif (id(old), id(value)) not in seen:
                    seen.add((id(old), id(value)))
                    yield from _of_containers(said, before, after)
                    if _is_paired(before, after):
                        waiting.append((said, before.named or {}, after.named or {}))
            for key in was:
                if key not in now:
                    met = f"{self._said(key)} for {owner} was removed inside the capture"
                    yield Difference(met, Change.REMOVED)

    def _kept_of(self, value: Any) -> Entries | None:
        kept = self._kept.get(id(value))
        return kept[1] if kept is not None else None


def _of_one(
    said: str, old: Any, value: Any, is_born: Callable[[torch.Tensor], bool]
) -> Iterator[Difference]:
    if old is value or (old is not ABSENT and _equal(old, value)):
        return
    change = Change.ADDED if old is ABSENT else Change.CHANGED
    if isinstance(value, torch.Tensor):
        verb = "created" if is_born(value) else "bound"
        yield Difference(f"{said} was {verb} inside the capture", change)
    elif old is ABSENT:
        yield Difference(f"{said} was set inside the capture", change)
    elif _is_number(old) and _is_number(value):
        met = f"{said} is a Python number, changed from {old} to {value} {AGAIN}"
        yield Difference(met, change)
    elif _is_printable(old) and _is_printable(value):
        yield Difference(f"{said} was changed from {old!r:.60} to {value!r:.60} {AGAIN}", change)
    elif type(old) is not type(value):
        met = f"{said} was bound to a {type(value).__name__} inside the capture"
        yield Difference(met, change)
    # Else it is an object of the same kind, whose attributes are not looked at.


def _of_containers(said: str, before: Entries, after: Entries) -> Iterator[Difference]:
    met = ""
    if before.kind is not after.kind:
        met = f"{said} was bound to another kind of container {AGAIN}"
    elif before.kind is Kind.SEQUENCE and len(before.held) != len(after.held):
        met = f"{said} was changed from {len(before.held)} entries to {len(after.held)} {AGAIN}"
    elif before.kind is Kind.SET and before.held != after.held:
        met = f"{said} is a set, changed {AGAIN}"
    elif before.kind is Kind.ARRAY and not _is_paired(before, after):
        if not equal_arrays(before.held, after.held):
            met = f"{said} is an array, changed {AGAIN}"
    elif before.ordered and after.ordered and _is_turned(before.held, after.held):
        met = f"the order of {said} was changed {AGAIN}"
    if met:
        yield Difference(met, Change.CHANGED)


def _is_turned(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    """True for the same keys in another order."""
    return before.keys() == after.keys() and not all(map(is_, before, after))


def _is_paired(before: Entries, after: Entries) -> bool:
    """True if entries are to be compared one by one."""
    if before.kind is not after.kind or before.named is None or after.named is None:
        return False
    if before.kind is Kind.ARRAY:
        return bool(before.held.shape == after.held.shape)
    return before.kind is not Kind.SEQUENCE or len(before.held) == len(after.held)


def _equal(old: Any, value: Any) -> bool:
    if isinstance(old, METHODS):
        # They are made anew each time that they are asked for.
        return type(old) is type(value) and old == value
    if is_of_numpy(old, "generic"):
        return type(old) is type(value) and equal_arrays(old, value)
    return same(old, value)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) or is_of_numpy(value, "generic")


def _is_printable(value: Any) -> bool:
    return is_constant(value) and not callable(value)
