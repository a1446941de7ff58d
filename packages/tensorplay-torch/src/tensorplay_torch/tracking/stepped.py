"""One optimizer as it was before its first step in a capture: what a replay would not bind anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .contents import Change, Contents
from .culprit import where

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

__all__ = ["Stepped"]

ON_DEVICE = (
    "Keep it in a tensor on the device that the step changes in place (capturable=True does that "
    "for torch's own optimizers; fused=True takes a tensor for lr), and write into that tensor "
    "between replays, as a schedule of torch does: a replay does not read numbers anew."
)
REMEDIES = {
    Change.ADDED: (
        "Warm up first: run the step eagerly once before the capture, so that its state exists; or "
        "let tensorplay_adapt capture the step, which creates it."
    ),
    Change.REMOVED: (
        "Warm up first: run the step eagerly before the capture until it removes nothing more."
    ),
    Change.CHANGED: ON_DEVICE,
}
GROUPS = "Add parameter groups before the capture, and warm up with them."


class Stepped:
    """See the module.

    Args:
        optimizer: It is about to step.
        is_born: True for a tensor whose memory was born in the capture.

    Attributes:
        optimizer: The same.
        place: Where the user's code steps it.
    """

    def __init__(self, optimizer: Optimizer, is_born: Callable[[torch.Tensor], bool]) -> None:
        self.optimizer = optimizer
        self.place = where()
        self._places = _places(optimizer)
        self._state, self._groups = optimizer.state, optimizer.param_groups
        # Wrappers of optimizers have mappings and sequences of their own.
        self._kept_state, self._kept_groups = _as(dict, self._state), _as(list, self._groups)
        self._contents = Contents(self._kept_state, self._kept_groups, said=self._said)
        # What was bound even before the step; each replay would begin from the old one again.
        self._early = [
            f"{said} was created inside the capture"
            for owner, entries in self._owners()
            for said, tensor in self._contents.tensors(owner, entries)
            if is_born(tensor)
        ]

    def changes(self, is_born: Callable[[torch.Tensor], bool]) -> Iterator[tuple[str, str]]:
        """What differs now, each with its remedy."""
        for met in self._early:
            yield met, ON_DEVICE
        self._places = _places(self.optimizer)
        groups = self._contents.of(self._kept_groups)
        added = len(self.optimizer.param_groups) - len(groups)
        if added:
            yield f"{abs(added)} param_groups were changed inside the capture", GROUPS
        before, now = self._contents.of(self._kept_state), _as(dict, self.optimizer.state)
        pairs = [
            (self._parameter(key), self._items(before.get(key)), _items(now.get(key)))
            for key in {**before, **now}
        ]
        pairs += [
            (f"param_groups[{place}]", self._contents.of(group), current)
            for place, (group, current) in enumerate(
                zip(groups.values(), self.optimizer.param_groups, strict=False)
            )
        ]
        for owner, was, current in pairs:
            for met, change in self._contents.differences(owner, was, current, is_born):
                yield met, REMEDIES[change]

    def restore(self) -> None:
        """Puts state and settings back in place."""
        self._contents.restore()
        if self._kept_state is not self._state:
            for key in [key for key in self._state if key not in self._kept_state]:
                del self._state[key]
            for key, value in self._kept_state.items():
                self._state[key] = value
        if self._kept_groups is not self._groups:
            self._groups[:] = self._kept_groups
        if self.optimizer.state is not self._state:
            self.optimizer.state = self._state
        if self.optimizer.param_groups is not self._groups:
            self.optimizer.param_groups = self._groups

    def _owners(self) -> Iterator[tuple[str, dict[Any, Any]]]:
        for key, state in self._contents.of(self._kept_state).items():
            yield self._parameter(key), self._items(state)
        for place, group in self._contents.of(self._kept_groups).items():
            # A block may train what it made itself.
            settings = {name: one for name, one in group.items() if name != "params"}
            yield f"param_groups[{place}]", settings

    def _items(self, state: Any) -> dict[Any, Any]:
        return self._contents.of(state) if isinstance(state, dict) else _items(state)

    def _said(self, key: object) -> str:
        return self._parameter(key) if isinstance(key, torch.Tensor) else f"{key!r:.60}"

    def _parameter(self, key: object) -> str:
        if not isinstance(key, torch.Tensor):
            return f"state entry {key!r:.60}"
        if id(key) in self._places:
            place, number = self._places[id(key)]
            return f"param_groups[{place}]['params'][{number}] of shape {tuple(key.shape)}"
        return f"a parameter of shape {tuple(key.shape)}"


def _as(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else kind(value)


def _places(optimizer: Optimizer) -> dict[int, tuple[int, int]]:
    """Group and place in it of each parameter."""
    return {
        id(parameter): (place, number)
        for place, group in enumerate(optimizer.param_groups)
        for number, parameter in enumerate(group["params"])
    }


def _items(state: Any) -> dict[Any, Any]:
    """What is held for one parameter. Nothing, and an empty dict that was only asked for, is {}."""
    if isinstance(state, dict):
        return state
    return {} if state is None else {"state": state}
