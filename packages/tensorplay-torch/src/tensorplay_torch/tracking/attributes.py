"""What Python code binds to modules and other objects while it runs: seen, named and undone.

A replay runs no Python, so an attribute that a forward sets would be set at the capture and never
again. Attributes, and one level of the lists, dicts and sets among them, are compared by identity.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .fixed import same

__all__ = ["Attributes"]

CONTAINERS = (list, dict, set, deque)
ABSENT = object()


class Attributes:
    """The attributes of objects, and the gradients of modules' parameters, as they are now.

    Args:
        objects: By path.
        without: Names of attributes that are left alone.
    """

    def __init__(self, objects: Mapping[str, object], without: Collection[str] = ()) -> None:
        self._without = without
        self._objects = [
            (path, one, {name: _shallow(value) for name, value in self._of(one).items()})
            for path, one in objects.items()
        ]
        self._grads = [
            (f"{path}.{name}" if path else name, parameter, parameter.grad)
            for path, one in objects.items()
            if isinstance(one, nn.Module)
            for name, parameter in vars(one)["_parameters"].items()
            if parameter is not None
        ]

    def changes(self) -> Iterator[str]:
        """What is bound otherwise now, by path."""
        for path, one, before in self._objects:
            prefix = f"{path}." if path else ""
            now = self._of(one)
            for name in before.keys() | now.keys():
                value, (old, inside) = now.get(name, ABSENT), before.get(name, (ABSENT, None))
                if not _equal(old, value):
                    yield f"{prefix}{name}"
                elif inside is not None:
                    yield from (f"{prefix}{name}{key}" for key in _changed(inside, value))
        for path, parameter, grad in self._grads:
            if parameter.grad is not grad:
                yield f"{path}.grad"

    def _of(self, one: object) -> dict[str, Any]:
        if not self._without:
            return vars(one)
        return {name: value for name, value in vars(one).items() if name not in self._without}

    def restore(self) -> None:
        """Binds everything as it was, containers in place."""
        for _, one, before in self._objects:
            now = vars(one)
            for name in self._of(one).keys() - before.keys():
                del now[name]
            for name, (value, inside) in before.items():
                now[name] = value
                if inside is not None and any(_changed(inside, value)):
                    _refill(value, inside)
        for _, parameter, grad in self._grads:
            if parameter.grad is not grad:
                parameter.grad = grad


def _shallow(value: Any) -> tuple[Any, Any]:
    return value, copy.copy(value) if isinstance(value, CONTAINERS) else None


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, torch.Tensor) or isinstance(new, torch.Tensor):
        return old is new
    return old is new or same(old, new)


def _changed(before: Any, now: Any) -> Iterator[str]:
    """Keys at which a container differs from its copy."""
    if isinstance(before, set):
        if before != now:
            yield ""
        return
    old = before if isinstance(before, dict) else dict(enumerate(before))
    new = now if isinstance(now, dict) else dict(enumerate(now))
    for key in [*old, *(key for key in new if key not in old)]:
        if not _equal(old.get(key, ABSENT), new.get(key, ABSENT)):
            yield f"[{key!r}]"


def _refill(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, dict | set):
        container.update(before)
    else:
        container.extend(before)
