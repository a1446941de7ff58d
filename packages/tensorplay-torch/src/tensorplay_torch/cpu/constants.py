"""Tensors made from Python numbers inside a capture, as by ``torch.tensor(...)``.

Their bytes are there from the start and no operation writes them. Work that changes one would find
it changed at the next replay, so from the first such work on its bytes are put back first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorplay_torch.resources.arena import Scope
from tensorplay_torch.resources.storages import key_of

if TYPE_CHECKING:
    import torch

__all__ = ["Constants"]

Work = Callable[[], object]


class Constants:
    """The constants of one capture.

    Args:
        submit: Records a node: ``submit(work, name)``.
    """

    def __init__(self, submit: Callable[[Work, str], None]) -> None:
        self._submit = submit
        # By the scope itself, not by its id: another body's scope may come to have that.
        self._carriers: dict[Scope, list[Work]] = {}
        self._untouched: dict[int, tuple[torch.Tensor, list[Work]]] = {}

    def note(self, tensor: torch.Tensor, scope: Scope) -> None:
        """``tensor`` was made now, in ``scope``, which runs its node for constants each time."""
        restores = self._carriers.get(scope)
        if restores is None:
            restores = self._carriers[scope] = []
            self._submit(_Restoring(restores), "constants")
        self._untouched[key_of(tensor)] = (tensor, restores)

    def wrote(self, tensor: torch.Tensor) -> None:
        """Recorded work changes the memory of ``tensor``, which may be a constant's."""
        if not self._untouched:
            return
        constant, restores = self._untouched.pop(key_of(tensor), (None, []))
        if constant is not None:
            alias = constant.detach()
            restores.append(_Restore(alias, alias.clone()))


class _Restoring:
    """A node: nothing to do unless a constant is written."""

    __slots__ = ("restores",)

    def __init__(self, restores: list[Work]) -> None:
        self.restores = restores

    def __call__(self) -> None:
        for restore in self.restores:
            restore()


class _Restore:
    __slots__ = ("constant", "value")

    def __init__(self, constant: torch.Tensor, value: torch.Tensor) -> None:
        self.constant, self.value = constant, value

    def __call__(self) -> None:
        self.constant.copy_(self.value)
