"""What captured code binds in Python: optimizer state and gradients, which no replay rebinds.

``Bindings`` watches the optimizers that step and the parameters that are used, in the thread that
captures. After a capture ``check`` refuses optimizer state that was created or replaced in it: its
first replay would be right and every later one would begin from the same state again. After a
failed one ``restore`` puts back what was bound before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from tensorplay_core.errors import OperationRefused

from .stepped import Stepped
from .untraced import untraced

if TYPE_CHECKING:
    import torch

__all__ = ["Bindings"]


class Bindings:
    """See the module.

    Args:
        is_born: True for a tensor whose memory was born in the capture.
    """

    def __init__(self, is_born: Callable[[torch.Tensor], bool]) -> None:
        self._is_born = is_born
        self._steps: dict[int, Stepped] = {}
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
            OperationRefused: State was created, replaced or removed, or a number in it was changed.
        """
        if self._steps:
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
            self._steps[id(optimizer)] = Stepped(optimizer, self._is_born)


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
