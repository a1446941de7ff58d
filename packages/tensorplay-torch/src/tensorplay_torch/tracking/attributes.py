"""What Python code binds to modules and other objects while it runs: seen, named and undone.

A replay runs no Python, so an attribute that a forward sets would be set at the capture and never
again. Of lists, dicts and sets among the attributes what is in them is compared; tensors are
compared by identity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn

from .held import Held

__all__ = ["Attributes"]


class Attributes:
    """The attributes of objects, and the gradients of modules' parameters, as they are now.

    Args:
        objects: By path.
        without: Names of attributes that are left alone.
    """

    def __init__(self, objects: Mapping[str, object], without: Collection[str] = ()) -> None:
        self._without = without
        self._objects = [
            (path, one, {name: Held(value) for name, value in self._of(one).items()})
            for path, one in objects.items()
        ]
        self._grads = [
            (f"{path}.{name}" if path else name, parameter, parameter.grad)
            for path, one in objects.items()
            if issubclass(type(one), nn.Module)
            for name, parameter in vars(one)["_parameters"].items()
            if parameter is not None
        ]

    def changes(self) -> Iterator[str]:
        """What is bound otherwise now, by path."""
        for path, one, before in self._objects:
            prefix = f"{path}." if path else ""
            now = self._of(one)
            for name in before.keys() | now.keys():
                if name not in before or name not in now:
                    yield f"{prefix}{name}"
                    continue
                found = before[name].changes(now[name])
                yield from (f"{prefix}{name}{where}" for where in found)
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
            for name, held in before.items():
                now[name] = held.value
                held.restore()
        for _, parameter, grad in self._grads:
            if parameter.grad is not grad:
                parameter.grad = grad
