"""What a container holds at one moment, by key where that makes sense, and how to put it back."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections import OrderedDict, UserDict, UserList, deque
from operator import is_
from typing import Any, NamedTuple

import torch

from .fixed import equal_arrays

__all__ = ["Entries", "Kind", "entries_of", "is_of_numpy", "refill"]

SEQUENCES = (list, tuple, deque)
SETS = (set, frozenset)
OBJECTS = (types.SimpleNamespace, UserDict, UserList)


class Kind(enum.Enum):
    """How a container holds things."""

    MAPPING = 0
    SEQUENCE = 1
    SET = 2
    ARRAY = 3
    OBJECT = 4


class Entries(NamedTuple):
    """What a container held.

    Attributes:
        kind: How.
        held: A dict by key, place or attribute; of a set or an array a copy.
        ordered: Its order matters, though it has keys.
    """

    kind: Kind
    held: Any
    ordered: bool = False

    @property
    def named(self) -> dict[Any, Any] | None:
        """The entries by key, where each is compared for itself."""
        if self.kind is Kind.ARRAY:
            return dict(enumerate(self.held.flat)) if self.held.dtype.hasobject else None
        return None if self.kind is Kind.SET else self.held


def is_of_numpy(value: Any, name: str) -> bool:
    """True for an instance of the class of NumPy's that is called ``name``."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(value), getattr(numpy, name))


def entries_of(value: Any) -> Entries | None:
    """What a container holds now; None for anything else."""
    # By its type alone: to ask a proxy for its class would evaluate it.
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return None
    if issubclass(kind, dict):
        ordered = issubclass(kind, OrderedDict)
        return Entries(Kind.MAPPING, dict(value.items()), ordered)
    if issubclass(kind, SEQUENCES) and kind is not torch.Size:
        return Entries(Kind.SEQUENCE, dict(enumerate(value)))
    if issubclass(kind, SETS):
        return Entries(Kind.SET, frozenset(value))
    if is_of_numpy(value, "ndarray"):
        return Entries(Kind.ARRAY, value.copy())
    if issubclass(kind, OBJECTS) or dataclasses.is_dataclass(kind):
        return Entries(Kind.OBJECT, _attributes(value))
    return None


def _attributes(value: Any) -> dict[str, Any]:
    # A dataclass may have slots.
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    slots = {one.name: getattr(value, one.name) for one in fields if hasattr(value, one.name)}
    return {**slots, **getattr(value, "__dict__", {})}


def refill(value: Any, entries: Entries) -> None:
    """Makes a container hold what it held. Idempotent."""
    held = entries.held
    if entries.kind is Kind.ARRAY:
        if value.shape == held.shape and value.flags.writeable and not equal_arrays(value, held):
            value[...] = held
    elif entries.kind is Kind.SET:
        if isinstance(value, set) and value != held:
            value.clear()
            value.update(held)
    elif _holds(value, held):
        return
    elif entries.kind is Kind.OBJECT:
        for name in _attributes(value).keys() - held.keys():
            object.__delattr__(value, name)
        for name, one in held.items():
            # A frozen one may have been changed like this, too.
            object.__setattr__(value, name, one)
    elif entries.kind is Kind.MAPPING:
        for name in [name for name in value if name not in held]:
            del value[name]
        # One by one: the update of a Counter adds.
        for name, one in held.items():
            value[name] = one
        if not all(map(is_, value, held)):
            value.clear()
            for name, one in held.items():
                value[name] = one
    elif isinstance(value, list):
        value[:] = held.values()
    elif isinstance(value, deque):
        value.clear()
        value.extend(held.values())


def _holds(value: Any, held: dict[Any, Any]) -> bool:
    """True if it holds the same objects, in the same order."""
    found = entries_of(value)
    now = {} if found is None else found.held
    return len(now) == len(held) and all(
        key is kept and one is other
        for (key, one), (kept, other) in zip(now.items(), held.items(), strict=True)
    )
