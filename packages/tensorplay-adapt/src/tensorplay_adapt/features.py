"""What training puts around the plain step: precision, accumulation, scaling, skipping, EMA."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tensorplay_core.errors import ArgumentError
from tensorplay_torch import cond
from tensorplay_torch.structure import structure_of

__all__ = ["Features"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """The features of one step; each is off by default.

    Attributes:
        microbatches: Into how many equal parts of dimension 0 a batch is split. Each is run forward
            and backward with its loss divided by their number, gradients add up, and one update
            follows.
        autocast: Dtype of ``torch.autocast`` around forward and loss.
        scaler: Scales the loss, unscales the gradients before the transform, skips the update when
            one is not finite, and adapts its scale, all on the device.
        skip_nonfinite: Skip the update when a gradient is not finite after the transform.
        ema: A module whose parameters follow those of the trained one, and whose buffers are copied
            from it.
        ema_decay: How much of them stays at each step.
        taken: 0-d; counts the updates that were not left out, where somebody has to know.
    """

    microbatches: int = 1
    autocast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    skip_nonfinite: bool = False
    ema: nn.Module | None = None
    ema_decay: float = 0.999
    taken: torch.Tensor | None = None

    def split(self, inputs: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
        """The microbatches of a batch.

        Raises:
            ArgumentError: A tensor's first dimension is no multiple of their number.
        """
        if self.microbatches == 1:
            yield inputs, targets
            return
        leaves: list[Any] = []
        structure = structure_of((inputs, targets), leaves)
        paths = structure.paths("(inputs, targets)")
        columns = [self._parts(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
        for row in zip(*columns, strict=True):
            yield structure.build(iter(row))

    def _parts(self, leaf: Any, path: str) -> tuple[Any, ...]:
        count = self.microbatches
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return (leaf,) * count
        if leaf.shape[0] % count:
            raise ArgumentError(
                doing="splitting into microbatches",
                subject=path,
                met=f"its first dimension is {leaf.shape[0]}, no multiple of {count}",
                remedy="Pass batches that split evenly, or another number of microbatches.",
            )
        return leaf.chunk(count)

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Autocast for forward and loss.

        Entered here, and not around the step, it forgets its low-precision weights before the
        update changes what they were made from.
        """
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to run backward from."""
        return self.scaler.scale(loss) if self.scaler is not None else loss

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes gradients of a scaled loss those of the loss, and notes whether all are finite."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def bodies(self, optimizer: torch.optim.Optimizer) -> int:
        """How deep in conditional bodies the update stands."""
        if self.scaler is not None:
            return 0 if _skips_by_itself(optimizer) else 1
        return int(self.skip_nonfinite)

    def update(self, optimizer: torch.optim.Optimizer, step: Callable[[], None]) -> None:
        """Takes ``step``, an update of ``optimizer``, if it is to be taken."""
        scaler = self.scaler

        def counted() -> None:
            step()
            if self.taken is not None:
                self.taken.add_(1)

        if scaler is not None:
            overflow = _overflow(scaler, optimizer)
            if _skips_by_itself(optimizer):
                # Its kernel skips by itself, and counts no step then.
                with _announced(optimizer, overflow):
                    step()
                if self.taken is not None:
                    self.taken.add_((overflow == 0).reshape(()))
            else:
                cond(overflow == 0, counted, _nothing)
            scaler.update()
        elif self.skip_nonfinite:
            cond(_all_finite(optimizer), counted, _nothing)
        else:
            step()

    @torch.no_grad()
    def average(self, module: nn.Module) -> None:
        """Moves the averaged module towards ``module``, as torch's ``AveragedModel`` does."""
        if self.ema is None:
            return
        torch._foreach_lerp_(
            [one.detach() for one in self.ema.parameters()],
            [one.detach() for one in module.parameters()],
            1 - self.ema_decay,
        )
        for averaged, buffer in zip(self.ema.buffers(), module.buffers(), strict=True):
            averaged.copy_(buffer)


class _announced(AbstractContextManager[None]):
    """While entered, ``optimizer`` knows where to read that a gradient overflowed.

    That is the agreement between torch's scaler and its fused optimizers; gradients are unscaled
    already.
    """

    def __init__(self, optimizer: Any, overflow: torch.Tensor) -> None:
        self._optimizer, self._overflow = optimizer, overflow

    def __enter__(self) -> None:
        self._optimizer.grad_scale = None
        self._optimizer.found_inf = self._overflow

    def __exit__(self, *_: object) -> None:
        del self._optimizer.grad_scale
        del self._optimizer.found_inf


def _skips_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _overflow(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """0-d: how many devices met a gradient that is not finite."""
    total, *others = scaler._found_inf_per_device(optimizer).values()
    for other in others:
        total = total + other
    return total  # type: ignore[no-any-return]


def _all_finite(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    return torch.isfinite(torch.nn.utils.get_total_norm(gradients, math.inf))


def _nothing() -> None:
    return None
