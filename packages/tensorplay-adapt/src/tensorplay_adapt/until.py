"""Adaptation inside one launch: a while node repeats the step until the loss is small enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from tensorplay_core.errors import OperationRefused
from tensorplay_torch import CUDAGraph

from .batch import Batch
from .capturing import session
from .recipe import Around, Recipe

__all__ = ["Until", "UntilLoop"]

MOST = 2**31 - 1
DROPOUT = nn.modules.dropout._DropoutNd


class Until(NamedTuple):
    """What ``step.until`` did; tensors on the step's device, the caller's own."""

    steps: torch.Tensor
    """0-d int64: how many steps were taken."""
    loss: torch.Tensor
    """0-d: the loss that the last of them met, before its update."""


class UntilLoop:
    """A step inside a while node.

    Args:
        recipe: What the step does.
        batch: The static batch, shared with the plain step.
        warmup_steps: Real steps taken, and undone, before the capture.
        pool: As for ``graph()``.

    Attributes:
        hyperparameters: The numbers of its graph.

    Raises:
        OperationRefused: The step draws random numbers, or does what a body cannot.
    """

    def __init__(self, recipe: Recipe, batch: Batch, warmup_steps: int, pool: object) -> None:
        device = recipe.device
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._most = torch.zeros((), dtype=torch.int64, device=device)
        # A double, so that the comparison is Python's.
        self._tolerance = torch.zeros((), dtype=torch.float64, device=device)
        self._again = torch.zeros((), dtype=torch.bool, device=device)
        self._asked: tuple[float, int] = (0.0, 0)
        self._loss = torch.zeros((), dtype=torch.float32, device=device)

        def loop(captured: CUDAGraph, around: Around) -> None:
            self._steps.zero_()
            # The bound is in the predicate; the host driver wants one of its own.
            most = MOST if device.type == "cpu" else None
            with captured.while_loop(self._again, first=True, max_steps=most) as body:
                outcome = recipe.run(batch.static_inputs, batch.static_targets, around)
                self._loss.copy_(outcome.loss)
                self._steps.add_(1)
                over = outcome.loss.double() > self._tolerance
                torch.logical_and(over, self._steps < self._most, out=self._again)
                body.condition(self._again)

        try:
            with session(recipe, pool) as made:
                bodies = 1 + recipe.features.bodies(recipe.optimizer)
                loss = made.warm_up(batch, max(warmup_steps, 1), bodies=bodies)
                assert loss is not None
                self._loss = torch.zeros_like(loss)
                self._graph, _, self.hyperparameters = made.capture(loop)
        except OperationRefused as error:
            drawing = [
                f"{path or 'the module'} ({type(module).__name__})"
                for path, module in recipe.module.named_modules()
                if isinstance(module, DROPOUT) and module.training and module.p
            ]
            if drawing:
                error.add_note(f"these draw random numbers in training: {', '.join(drawing)}")
            raise
        self._plan = self._graph.stage(batch.tensors, [self._steps, self._loss])

    def __call__(self, leaves: Sequence[torch.Tensor], tolerance: float, max_steps: int) -> Until:
        """Runs it on a batch.

        Raises:
            SignatureMismatch: The batch is not like the one captured.
        """
        if (tolerance, max_steps) != self._asked:
            self._tolerance.fill_(tolerance)
            self._most.fill_(max_steps)
            self._asked = tolerance, max_steps
        return Until(*self._plan(leaves))

    def close(self) -> None:
        """Ends the graph. Idempotent."""
        self._graph.close()
