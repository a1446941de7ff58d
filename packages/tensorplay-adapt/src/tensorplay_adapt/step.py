"""``CudaGraphAdaptationStep``: a whole training step, forward to update, in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from tensorplay_core.errors import SignatureMismatch
from tensorplay_torch import CUDAGraph

from .batch import Batch
from .capturing import Captured, capture_step
from .features import Features
from .recipe import GradientTransform, Recipe, TensorLoss

__all__ = ["CudaGraphAdaptationStep"]


@dataclass(eq=False)
class CudaGraphAdaptationStep:
    module: nn.Module
    optimizer: Optimizer
    static_inputs: Any
    static_targets: Any
    graph: CUDAGraph
    static_loss: torch.Tensor

    def __post_init__(self) -> None:
        self._batch = Batch(self.static_inputs, self.static_targets)
        self._plan = self.graph.stage(self._batch.tensors, [self.static_loss])

    @classmethod
    def capture(
        cls,
        module: nn.Module,
        optimizer: Optimizer,
        example_inputs: Any,
        example_targets: Any,
        loss_function: TensorLoss,
        *,
        warmup_steps: int = 3,
        gradient_transform: GradientTransform | None = None,
        microbatches: int = 1,
        autocast: torch.dtype | None = None,
        scaler: GradScaler | None = None,
        skip_nonfinite: bool = False,
        ema: nn.Module | None = None,
        ema_decay: float = 0.999,
        on_change: Literal["raise", "recapture"] = "raise",
        pool: object = None,
        device: object = None,
    ) -> Self:
        dev = next(module.parameters()).device
        recipe = Recipe(module=module, optimizer=optimizer, loss_function=loss_function, gradient_transform=gradient_transform,
            device=dev, features=Features(microbatches=microbatches, autocast=autocast, scaler=scaler, skip_nonfinite=skip_nonfinite, ema=ema, ema_decay=ema_decay))
        batch = Batch(example_inputs, example_targets).owned(dev)
        captured = capture_step(recipe, batch, warmup_steps=warmup_steps, pool=pool)
        made = cls(module, optimizer, batch.static_inputs, batch.static_targets, captured.graph, captured.outcome.loss)
        return made

    def __call__(self, inputs, targets, *, synchronize=False):
        try:
            (loss,) = self._plan(self._batch.take(inputs, targets))
        except SignatureMismatch as error:
            raise self._batch.mismatch(inputs, targets) from error
        return loss
