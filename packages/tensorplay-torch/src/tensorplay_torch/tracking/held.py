"""A value as Python code holds it at one moment, to tell later whether it is still the same.

Lists, dicts, sets and deques are compared by what is in them, to some depth, and so are NumPy's
arrays if they are short; tensors by identity, since their values are memory, which others look
after, and objects likewise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import torch

from .fixed import equal_arrays, is_array, is_constant, same
from .kinds import is_of_users

__all__ = ["CONTAINERS", "Held", "is_filled", "is_of_library", "is_plain_object"]

CONTAINERS = (list, dict, set, deque)
DEPTH = 3
LONG = 1000
"""A longer container is data."""
ABSENT = object()
LIBRARIES = ("torch", "numpy", "builtins", "threading", "logging", "weakref", "functools")
"""Their objects have states of their own, which is not in their attributes or does not matter."""


class Held:
    """See the module.

    Args:
        value: What is held.
        depth: How many containers in one another are looked into.
        long: Of a longer container only the length is compared.

    Attributes:
        value: The same.
    """

    __slots__ = ("_inner", "_length", "_shallow", "value")

    def __init__(self, value: Any, depth: int = DEPTH, long: int = LONG) -> None:
        self.value = value
        self._shallow: Any = None
        self._inner: dict[Any, Held] = {}
        self._length = len(value) if issubclass(type(value), CONTAINERS) else 0
        if is_array(value) and value.nbytes <= LONG * 8:
            self._shallow = value.copy()
            return
        if not depth or self._length > long:
            return
        if issubclass(type(value), CONTAINERS):
            self._shallow = _shallow(value)
        if issubclass(type(value), tuple) and len(value) <= long:
            children = dict(enumerate(value))
        else:
            children = _entries(self._shallow)
        for key, one in children.items():
            if issubclass(type(one), (*CONTAINERS, tuple)):
                self._inner[key] = Held(one, depth - 1, long)

    def changes(self, now: Any, *, growing: bool = False) -> Iterator[str]:
        """Where ``now`` is not what was held: ``""`` for itself, else ``"[key]"``.

        Args:
            now: What is held now.
            growing: Keys that came to dicts do not count: such are caches.
        """
        value = self.value
        if now is not value and not self._alike(now):
            yield ""
            return
        if self._shallow is None:
            if self._length and len(now) != self._length:
                yield ""
            for key, held in self._inner.items():
                found = held.changes(now[key], growing=growing)
                yield from (f"[{key!r}]{rest}" for rest in found)
            return
        if is_array(self._shallow):
            if not equal_arrays(self._shallow, now):
                yield ""
            return
        if issubclass(type(self._shallow), set):
            if now != self._shallow:
                yield ""
            return
        keyed = growing and issubclass(type(value), dict)
        before, after = _entries(self._shallow), _entries(now)
        for key in [*before, *(key for key in after if key not in before)]:
            spelled = f"[{key!r}]"
            old, new = before.get(key, ABSENT), after.get(key, ABSENT)
            inner = self._inner.get(key)
            if keyed and old is ABSENT:
                continue
            if inner is not None and new is not ABSENT:
                yield from (spelled + rest for rest in inner.changes(new, growing=growing))
            elif old is not new and (issubclass(type(old), torch.Tensor) or not same(old, new)):
                yield spelled

    def is_same(self, now: Any, *, growing: bool = False) -> bool:
        """True if ``now`` is what was held, or as good."""
        return not any(True for _ in self.changes(now, growing=growing))

    def restore(self) -> None:
        """Puts back in place what the containers held."""
        value = self.value
        for held in self._inner.values():
            held.restore()
        if isinstance(value, list) and self._shallow is None:
            del value[self._length :]
        if self._shallow is None or self.is_same(value):
            return
        if is_array(value):
            if value.shape == self._shallow.shape and value.flags.writeable:
                value[...] = self._shallow
            return
        value.clear()
        if isinstance(value, dict | set):
            value.update(self._shallow)
        else:
            value.extend(self._shallow)

    def _alike(self, now: Any) -> bool:
        """True if another object may be as good, which what is in it decides."""
        value = self.value
        if issubclass(type(value), torch.Tensor) or type(now) is not type(value):
            return False
        if self._shallow is not None:
            return True
        if type(value) is tuple and len(value) == len(now):
            return all(
                key in self._inner or one is other or same(one, other)
                for key, (one, other) in enumerate(zip(value, now, strict=True))
            )
        return same(value, now)


def is_filled(name: str, value: object, filled: Collection[str]) -> bool:
    """True for a container that code, which knows it by ``name``, only puts things into."""
    return name in filled and issubclass(type(value), CONTAINERS)


def is_plain_object(value: object) -> bool:
    """True for an instance of a user's class: what it is lies in its attributes."""
    return is_of_users(value) and not is_constant(value) and not callable(value)


def is_of_library(value: object) -> bool:
    """True for an object of a library that keeps its state to itself."""
    return type(value).__module__.partition(".")[0] in LIBRARIES


def _shallow(value: Any) -> Any:
    for kind in (dict, list, set):
        if issubclass(type(value), kind):
            return kind(value)
    return list(value)


def _entries(value: Any) -> dict[Any, Any]:
    kind = type(value)
    if issubclass(kind, dict):
        entries: dict[Any, Any] = value
        return entries
    return dict(enumerate(value)) if issubclass(kind, list | deque) else {}
