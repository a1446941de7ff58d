"""What one step does, written once: the same code warms up, is captured, and is eager's measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import nn

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.signature import named
from tensorplay_torch.tracking.reached import compile_contexts

from .features import Features

__all__ = ["Around", "GradientTransform", "Outcome", "Recipe", "TensorLoss"]


class TensorLoss(Protocol):
    """``loss_function(prediction, targets)``: a 0-d differentiable tensor, perhaps with metrics."""

    def __call__(
        self, prediction: Any, targets: Any, /
    ) -> torch.Tensor | tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """The loss of one batch, or of one of its microbatches.

        Args:
            prediction: What the module returned.
            targets: The batch's, or that part of them.

        Returns:
            A 0-d tensor on the module's device that depends on a parameter; or such a tensor and a
            mapping of names to tensors, which come back as ``step.metrics``.
        """


class GradientTransform(Protocol):
    """Called after backward, when every ``p.grad`` is there and unscaled; clips them, say."""

    def __call__(self) -> Any:
        """Changes gradients in place.

        Returns:
            A tensor, None, or a container of tensors; it comes back as ``step.transform_result``.
        """


Around: TypeAlias = Callable[[], AbstractContextManager[object]]


class Outcome(NamedTuple):
    """What one step gives, without autograd history."""

    loss: torch.Tensor
    """0-d: the loss before the update; over microbatches their mean."""
    metrics: dict[str, torch.Tensor]
    """By name; over microbatches stacked in a new first dimension."""
    transformed: Any
    """What the gradient transform returned."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """One step: zero grads, forward, loss, backward, transform, update, EMA.

    Attributes:
        device: Where all of it happens.
        features: Precision, accumulation, skipping, averaging.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    loss_function: TensorLoss
    gradient_transform: GradientTransform | None
    device: torch.device
    features: Features = field(default_factory=Features)

    @property
    def compiled(self) -> bool:
        """True if torch.compile compiled parts of it: their first calls do other work."""
        functions = (self.module, self.loss_function, self.gradient_transform)
        modules = list(self.module.modules())
        return any(True for one in functions for _ in compile_contexts(one, modules))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every parameter that may get a gradient: the module's and the optimizer's, each once."""
        groups = (one for group in self.optimizer.param_groups for one in group["params"])
        return iter(dict.fromkeys((*self.module.parameters(), *groups)))

    def run(
        self,
        inputs: Any,
        targets: Any,
        around: Around = nullcontext,
        updating: Callable[[], object] | None = None,
    ) -> Outcome:
        """Does one step on tensors of the recipe's device.

        Args:
            inputs: What the module is called with, as its one argument.
            targets: What the loss function gets second.
            around: Entered around ``optimizer.step()``.
            updating: Called when the gradients are there and the update is to come.

        Raises:
            ArgumentTypeError: The loss function returns no tensor, or metrics are no mapping of
                names to tensors.
            ArgumentError: The loss is not 0-d or not differentiable.
        """
        features = self.features
        for parameter in self.parameters():
            parameter.grad = None
        with torch.enable_grad():
            parts = [self._backward(*part) for part in features.split(inputs, targets)]
        features.unscale(self.optimizer)
        transformed = _detached(self.gradient_transform() if self.gradient_transform else None)
        if updating is not None:
            updating()
        self.update(around)
        features.average(self.module)
        loss = parts[0][0]
        for other, _ in parts[1:]:
            loss = loss + other
        return Outcome(loss, _stacked([metrics for _, metrics in parts]), transformed)

    def update(self, around: Around = nullcontext) -> None:
        """The optimizer's step, on gradients that are there, with what the features put around."""

        def step() -> None:
            with around():
                self.optimizer.step()

        self.features.update(self.optimizer, step)

    def _backward(
        self, inputs: Any, targets: Any
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        features = self.features
        with features.precision(self.device):
            loss, metrics = self._loss(self.module(inputs), targets)
        if features.microbatches > 1:
            loss = loss / features.microbatches
        features.scaled(loss).backward()
        return loss.detach(), {name: metric.detach() for name, metric in metrics.items()}

    def _loss(
        self, prediction: Any, targets: Any
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        made = self.loss_function(prediction, targets)
        loss, metrics = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        if not isinstance(loss, torch.Tensor):
            raise _unfit(
                ArgumentTypeError,
                f"it returned {named(loss)}",
                "Return a 0-d tensor, or such a tensor and a mapping of metrics.",
            )
        if loss.dim():
            raise _unfit(
                ArgumentError,
                f"its loss has shape {tuple(loss.shape)}",
                "Return a 0-d tensor: reduce it, by loss.mean() for example.",
            )
        if not loss.requires_grad:
            raise _unfit(
                ArgumentError,
                "its loss does not depend on any parameter that requires grad",
                "Compute it from the prediction, without detach() or torch.no_grad(), and leave "
                "requires_grad on for the parameters to adapt.",
            )
        if not isinstance(metrics, Mapping) or not all(
            isinstance(name, str) and isinstance(metric, torch.Tensor)
            for name, metric in metrics.items()
        ):
            raise _unfit(
                ArgumentTypeError,
                f"beside the loss it returned {named(metrics)}",
                "Return metrics as a mapping of names to tensors.",
            )
        return loss, metrics


def _stacked(parts: list[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    if len(parts) == 1:
        return dict(parts[0])
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _unfit(kind: type[ArgumentError], met: str, remedy: str) -> ArgumentError:
    return kind(doing="taking a step with", subject="the loss function", met=met, remedy=remedy)
