"""What captured code binds in Python: optimizer state and gradients, which no replay rebinds.

``Bindings`` watches the optimizers that step and the parameters that are used, in the thread that
captures. After a capture ``check`` refuses optimizer state that was created or replaced in it: its
first replay would be right and every later one would begin from the same state again. After a
failed one ``restore`` puts back what was bound before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from tensorplay_core.errors import OperationRefused

from .culprit import where
from .untraced import untraced

__all__ = ["Bindings"]

WARM_UP = (
    "Warm up first: run the step eagerly once before the capture, so that its state exists; or "
    "let tensorplay_adapt capture the step, which creates it."
)
ON_DEVICE = (
    "Keep it in a tensor on the device that the step changes in place (capturable=True does that "
    "for torch's own optimizers; fused=True takes a tensor for lr), and write into that tensor "
    "between replays, as a schedule of torch does: a replay does not read numbers anew."
)
GROUPS = "Add parameter groups before the capture, and warm up with them."


class Bindings:
    """See the module.

    Args:
        is_born: True for a tensor whose memory was born in the capture.
    """

    def __init__(self, is_born: Callable[[torch.Tensor], bool]) -> None:
        self._is_born = is_born
        self._steps: dict[int, _Step] = {}
        self._grads: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._thread = 0

    def start(self) -> None:
        """Begins to watch this thread's optimizers."""
        self._thread = threading.get_ident()
        _keep_hook()
        watching[self] = None

    def stop(self) -> None:
        """Stops, in whichever thread. Idempotent."""
        watching.pop(self, None)

    def leaf(self, tensor: torch.Tensor) -> None:
        """``tensor`` is used; if it is a leaf, its ``.grad`` is remembered."""
        if tensor.is_leaf and id(tensor) not in self._grads:
            self._grads[id(tensor)] = (tensor, tensor.grad)

    def check(self) -> None:
        """Refuses what optimizers bound during the capture.

        Raises:
            OperationRefused: State was created or replaced, or a number in it was changed.
        """
        for error in self.refusals():
            raise error

    def refusals(self) -> Iterator[OperationRefused]:
        """Everything that ``check`` refuses."""
        for step in self._steps.values():
            for met, remedy in step.changes(self._is_born):
                yield OperationRefused(
                    operation=f"{type(step.optimizer).__name__}.step",
                    met=met,
                    remedy=remedy,
                    where=step.place,
                )

    def restore(self) -> None:
        """Binds again what was bound before the capture."""
        for step in self._steps.values():
            step.restore()
        for tensor, grad in self._grads.values():
            if tensor.grad is not grad:
                tensor.grad = grad

    def forget(self) -> None:
        """Lets everything go."""
        self._steps.clear()
        self._grads.clear()

    def stepping(self, optimizer: Optimizer) -> None:
        """``optimizer`` is about to step in this thread, which counts if it is the one watched."""
        if threading.get_ident() == self._thread and id(optimizer) not in self._steps:
            self._steps[id(optimizer)] = _Step(optimizer, self._is_born)


watching: dict[Bindings, None] = {}
"""Those that have started and not stopped, of all threads."""


def _stepping(optimizer: Optimizer, *_: object) -> None:
    """Runs before each step of each optimizer, also of those that no capture has to do with."""
    if watching:
        _tell(optimizer)


@untraced
def _tell(optimizer: Optimizer) -> None:
    # A list, made at one go: other threads start and stop meanwhile.
    for one in list(watching):
        one.stepping(optimizer)


_handle = register_optimizer_step_pre_hook(_stepping)
"""One hook for good: to add one for a capture would break the steps of other threads, which go
through torch's dict of hooks meanwhile."""


def _keep_hook() -> None:
    """Registers the hook again, if somebody cleared all hooks."""
    hooks = _handle.hooks_dict_ref()
    if hooks is not None and _handle.id not in hooks:
        hooks[_handle.id] = _stepping


class _Step:
    """One optimizer as it was before its first step in the capture."""

    def __init__(self, optimizer: Optimizer, is_born: Callable[[torch.Tensor], bool]) -> None:
        self.optimizer = optimizer
        self.place = where()
        # What was bound even before the step; each replay would begin from the old one again.
        self._early = [
            f"{name!r} for param_groups[{place}] was created inside the capture"
            for place, group in enumerate(optimizer.param_groups)
            for name, value in _settings(group).items()
            if isinstance(value, torch.Tensor) and is_born(value)
        ]
        self._state = {key: _copied(value) for key, value in optimizer.state.items()}
        self._groups = [_copied(group) for group in optimizer.param_groups]

    def changes(self, is_born: Callable[[torch.Tensor], bool]) -> Iterator[tuple[str, str]]:
        """What differs now, each with its remedy."""
        for met in self._early:
            yield met, ON_DEVICE
        added = len(self.optimizer.param_groups) - len(self._groups)
        if added:
            yield f"{abs(added)} param_groups were changed inside the capture", GROUPS
        for key, state in self.optimizer.state.items():
            yield from _differences(
                self._parameter(key), _items(self._state.get(key)), _items(state), is_born
            )
        for place, (before, group) in enumerate(
            zip(self._groups, self.optimizer.param_groups, strict=False)
        ):
            yield from _differences(f"param_groups[{place}]", before, _settings(group), is_born)

    def restore(self) -> None:
        """Puts state and settings back in place."""
        del self.optimizer.param_groups[len(self._groups) :]
        state = self.optimizer.state
        for key in list(state):
            if key not in self._state:
                del state[key]
        for key, before in self._state.items():
            if isinstance(before, dict) and isinstance(state.get(key), dict):
                _refill(state[key], before)
            else:
                state[key] = before
        for before, group in zip(self._groups, self.optimizer.param_groups, strict=False):
            _refill(group, before)

    def _parameter(self, key: object) -> str:
        if not isinstance(key, torch.Tensor):
            return f"state entry {key!r}"
        for place, group in enumerate(self.optimizer.param_groups):
            for number, parameter in enumerate(group["params"]):
                if parameter is key:
                    return f"param_groups[{place}]['params'][{number}] of shape {tuple(key.shape)}"
        return f"a parameter of shape {tuple(key.shape)}"


def _differences(
    owner: str,
    before: dict[Any, Any],
    now: dict[Any, Any],
    is_born: Callable[[torch.Tensor], bool],
) -> Iterator[tuple[str, str]]:
    missing = object()
    for name, value in now.items():
        old = before.get(name, missing)
        if old is value:
            continue
        if isinstance(value, torch.Tensor):
            verb = "created" if is_born(value) else "bound"
            remedy = WARM_UP if old is missing else ON_DEVICE
            yield f"{name!r} for {owner} was {verb} inside the capture", remedy
        elif old is missing:
            yield f"{name!r} for {owner} was set inside the capture", WARM_UP
        elif isinstance(value, bool | int | float | complex) and old != value:
            yield (
                f"{name!r} for {owner} is a Python number, changed from {old} to {value} inside "
                "the capture, and a replay would not change it again",
                ON_DEVICE,
            )
        elif isinstance(value, list | tuple) and isinstance(old, list | tuple):
            yield from _differences(
                f"{name!r} for {owner}", dict(enumerate(old)), dict(enumerate(value)), is_born
            )


def _items(state: Any) -> dict[Any, Any]:
    if isinstance(state, dict):
        return state
    return {} if state is None else {"state": state}


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _copied(value: Any) -> Any:
    """A copy of the containers, holding the same objects."""
    if isinstance(value, dict):
        return {name: _copied(entry) for name, entry in value.items() if name != "params"}
    return list(value) if type(value) is list else value


def _refill(mapping: dict[Any, Any], before: dict[Any, Any]) -> None:
    for name in [name for name in mapping if name not in before and name != "params"]:
        del mapping[name]
    mapping.update(before)
