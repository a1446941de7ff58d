"""The shape of nested arguments and results: taken apart by key, compared by path, put together.

Containers are tuples, lists, named tuples, dicts (matched by key, whatever their order), instances
of dataclasses, and whatever is registered with torch's pytree. Everything else is a leaf.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from . import _tree

__all__ = ["Structure", "structure_of"]


class Structure(ABC):
    """One value without its leaves.

    Attributes:
        flat: It is a container of leaves only.
    """

    flat = False

    @abstractmethod
    def take(self, value: Any, leaves: list[Any]) -> bool:
        """Appends the leaves of ``value``; False as soon as it is built otherwise."""

    @abstractmethod
    def build(self, leaves: Iterator[Any]) -> Any:
        """A value of this shape from as many leaves as it needs."""

    @abstractmethod
    def paths(self, path: str) -> Iterator[str]:
        """What each leaf of a value called ``path`` is called, in order."""

    def names(self, path: str) -> Iterator[tuple[str, Any]]:
        """What beside the leaves comes from the value: keys, each with where it is."""
        yield from ()

    @abstractmethod
    def differences(self, value: Any, path: str) -> Iterator[str]:
        """How ``value`` is built otherwise, one line each."""


class _Leaf(Structure):
    def take(self, value: Any, leaves: list[Any]) -> bool:
        leaves.append(value)
        return True

    def build(self, leaves: Iterator[Any]) -> Any:
        return next(leaves)

    def paths(self, path: str) -> Iterator[str]:
        yield path

    def differences(self, value: Any, path: str) -> Iterator[str]:
        if _container_of(value) is not None:
            yield f"{path}: captured a single value, got {_said(value)}"


LEAF = _Leaf()


class _Container(Structure):
    """Values of one type with the same children.

    Args:
        value: The one to describe.
        keys: What its children are called.
        children: Their shapes.
    """

    def __init__(self, value: Any, keys: Sequence[Any], children: Sequence[Structure]) -> None:
        self._type = type(value)
        self._keys, self._children = tuple(keys), tuple(children)
        self.flat = all(child is LEAF for child in children)

    @classmethod
    @abstractmethod
    def opened(cls, value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        """Keys and children of ``value``."""

    @abstractmethod
    def _values(self, value: Any) -> Iterable[Any] | None:
        """The children in the order of the keys; None if the keys are others."""

    @abstractmethod
    def _closed(self, values: list[Any]) -> Any:
        """A value of the children."""

    def _spelled(self, path: str, key: Any) -> str:
        return f"{path}[{key!r}]"

    def take(self, value: Any, leaves: list[Any]) -> bool:
        if type(value) is not self._type:
            return False
        values = self._values(value)
        if values is None:
            return False
        for child, one in zip(self._children, values, strict=True):
            if child is LEAF:
                leaves.append(one)
            elif not child.take(one, leaves):
                return False
        return True

    def build(self, leaves: Iterator[Any]) -> Any:
        return self._closed([child.build(leaves) for child in self._children])

    def paths(self, path: str) -> Iterator[str]:
        for key, child in zip(self._keys, self._children, strict=True):
            yield from child.paths(self._spelled(path, key))

    def names(self, path: str) -> Iterator[tuple[str, Any]]:
        for key, child in zip(self._keys, self._children, strict=True):
            yield path, key
            yield from child.names(self._spelled(path, key))

    def differences(self, value: Any, path: str) -> Iterator[str]:
        if type(value) is not self._type:
            yield f"{path}: captured {_a(self._type)}, got {_said(value)}"
            return
        keys, values = type(self).opened(value)
        given = dict(zip(keys, values, strict=True))
        for key in self._keys:
            if key not in given:
                yield f"{self._spelled(path, key)}: captured, not given"
        for key in keys:
            if key not in self._keys:
                yield f"{self._spelled(path, key)}: given, not captured"
        for key, child in zip(self._keys, self._children, strict=True):
            if key in given:
                yield from child.differences(given[key], self._spelled(path, key))


class _Sequence(_Container):
    @classmethod
    def opened(cls, value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        return range(len(value)), value

    def _values(self, value: Any) -> Iterable[Any] | None:
        return tuple(value) if len(value) == len(self._keys) else None

    def _closed(self, values: list[Any]) -> Any:
        return self._type(values)


class _NamedTuple(_Container):
    @classmethod
    def opened(cls, value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        return value._fields, value

    def _values(self, value: Any) -> Iterable[Any]:
        return tuple(value)

    def _closed(self, values: list[Any]) -> Any:
        return self._type(*values)

    def _spelled(self, path: str, key: Any) -> str:
        return f"{path}.{key}"


class _Mapping(_Container):
    def __init__(self, value: Any, keys: Sequence[Any], children: Sequence[Structure]) -> None:
        super().__init__(value, keys, children)
        self._default = getattr(value, "default_factory", None)

    @classmethod
    def opened(cls, value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        return list(value), list(value.values())

    def _values(self, value: Any) -> Iterable[Any] | None:
        if len(value) != len(self._keys):
            return None
        try:
            # By key: a dict that was filled in another order is the same argument.
            return [dict.__getitem__(value, key) for key in self._keys]
        except KeyError:
            return None

    def _closed(self, values: list[Any]) -> Any:
        pairs = zip(self._keys, values, strict=True)
        return defaultdict(self._default, pairs) if self._type is defaultdict else self._type(pairs)


class _Record(_Container):
    def __init__(self, value: Any, keys: Sequence[Any], children: Sequence[Structure]) -> None:
        super().__init__(value, keys, children)
        self._count = len(getattr(value, "__dict__", ()))

    @classmethod
    def opened(cls, value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        # And what __post_init__ or others have set beside the fields.
        names += [name for name in getattr(value, "__dict__", ()) if name not in names]
        return names, [getattr(value, name) for name in names]

    def _values(self, value: Any) -> Iterable[Any] | None:
        if len(getattr(value, "__dict__", ())) != self._count:
            return None
        try:
            return [getattr(value, name) for name in self._keys]
        except AttributeError:
            return None

    def _closed(self, values: list[Any]) -> Any:
        # Around __init__, which may do more than store its arguments.
        made = object.__new__(self._type)
        for name, value in zip(self._keys, values, strict=True):
            object.__setattr__(made, name, value)
        return made

    def _spelled(self, path: str, key: Any) -> str:
        return f"{path}.{key}"


class _Registered(_Container):
    def __init__(self, value: Any, keys: Sequence[Any], children: Sequence[Structure]) -> None:
        super().__init__(value, keys, children)
        self._context = _tree.children(value)[1]

    @classmethod
    def opened(cls, value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        values = _tree.children(value)[0]
        return range(len(values)), values

    def _values(self, value: Any) -> Iterable[Any] | None:
        values, context = _tree.children(value)
        return values if len(values) == len(self._keys) and context == self._context else None

    def _closed(self, values: list[Any]) -> Any:
        return _tree.rebuild(self._type, values, self._context)

    def differences(self, value: Any, path: str) -> Iterator[str]:
        yield from super().differences(value, path)
        if type(value) is self._type:
            context = _tree.children(value)[1]
            if context != self._context:
                yield f"{path}: captured with {self._context!r}, got {context!r}"


def structure_of(value: Any, leaves: list[Any]) -> Structure:
    """The shape of ``value``, whose leaves are appended to ``leaves`` in its order."""
    kind = _container_of(value)
    if kind is None:
        leaves.append(value)
        return LEAF
    keys, values = kind.opened(value)
    return kind(value, keys, [structure_of(one, leaves) for one in values])


def _container_of(value: Any) -> type[_Container] | None:
    kind = type(value)
    if kind is tuple or kind is list:
        return _Sequence
    if kind in (dict, OrderedDict, defaultdict):
        return _Mapping
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _NamedTuple
    if _tree.is_registered(kind):
        return _Registered
    if dataclasses.is_dataclass(kind) and not isinstance(value, nn.Module):
        return _Record
    return None


def _said(value: Any) -> str:
    return _a(type(value)) if value is not None else "None"


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0].lower() in 'aeiou' else 'a'} {kind.__name__}"
