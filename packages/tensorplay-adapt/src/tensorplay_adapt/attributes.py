"""What entries of dicts are called, and which dict has the attributes of an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorplay_torch.graphing.eligibility import HOOKS

__all__ = ["CONTAINERS", "Attributes", "Names"]

CONTAINERS = ("_parameters", "_buffers", "_modules", *HOOKS)
"""Those of a module that are dicts, which somebody may put others in the place of."""


class Names:
    """The keys of a dict, in order.

    Args:
        of: The dict.
    """

    def __init__(self, of: dict[Any, Any]) -> None:
        self._dict, self._keys = of, list(of)

    @property
    def changed(self) -> bool:
        """True if they are not what they were."""
        try:
            return list(self._dict) != self._keys
        except RuntimeError:  # Another tensor is among them, and has no truth.
            return True


class Attributes:
    """The attributes of an object.

    Args:
        owner: The object.

    Attributes:
        dict: Has them now.
        containers: Those of ``CONTAINERS`` that it has.
        hooks: Its dicts of hooks.
    """

    def __init__(self, owner: object) -> None:
        self._owner, self.dict = owner, vars(owner)
        self._names = tuple(self.dict)
        self.containers: dict[str, Any] = {
            name: self.dict[name] for name in CONTAINERS if name in self.dict
        }
        self.hooks: list[dict[Any, Any]] = [
            self.containers[name] for name in HOOKS if name in self.containers
        ]
        self._sizes = list(map(len, self.hooks))

    @property
    def changed(self) -> bool:
        """True if another dict has them, there are others, or a container is not what it was."""
        now = vars(self._owner)
        return (
            now is not self.dict
            or tuple(now) != self._names
            or any(now[name] is not one for name, one in self.containers.items())
            or list(map(len, self.hooks)) != self._sizes
        )

    def changes(self) -> Iterator[str]:
        """Nothing: ``Watching`` says what it means."""
        return iter(())
