"""Ctrl-C at any moment of a call: the next calls compute what eager steps do, or say why not."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import GraphStateError

# One moment in so many is tried where there are thousands; EVERY=1 tries them all.
EVERY = int(os.environ.get("EVERY", "0"))
mse = nn.functional.mse_loss


class Damped:
    """A captured step of SGD with dampening, whose first step is unlike the others, and eager's."""

    def __init__(self, device: str, **options: Any) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(6, 4).to(device), torch.randn(6, 2).to(device)
        self.sides = [self._side(device) for _ in range(2)]
        (self.model, self.optimizer), _ = self.sides
        self.step = CudaGraphAdaptationStep.capture(
            self.model, self.optimizer, self.x, self.y, mse, device=device, **options
        )

    @staticmethod
    def _side(device: str) -> tuple[nn.Module, optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Linear(4, 2).to(device)
        return model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.2)

    def rate(self, value: float) -> None:
        for _, optimizer in self.sides:
            optimizer.param_groups[0]["lr"] = value

    def eager(self) -> torch.Tensor:
        model, optimizer = self.sides[1]
        optimizer.zero_grad()
        loss = mse(model(self.x), self.y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def equal(self) -> bool:
        pairs = zip(*(model.parameters() for model, _ in self.sides), strict=True)
        return all(torch.equal(one, other) for one, other in pairs)

    def compare(self, steps: int) -> None:
        for _ in range(steps):
            assert torch.equal(self.step(self.x, self.y), self.eager())
            assert self.equal()


def moments(device: str, every: int) -> Iterator[int]:
    """Captures on CUDA take ten times as long."""
    return count(1, EVERY or every * (1 if device == "cpu" else 10))


def first(pair: Damped) -> Any:
    return lambda: pair.step(pair.x, pair.y)


def later(pair: Damped) -> Any:
    pair.compare(2)
    return lambda: pair.step(pair.x, pair.y)


def another_rate(pair: Damped) -> Any:
    pair.compare(2)
    pair.rate(0.03)
    return lambda: pair.step(pair.x, pair.y)


def first_rate(pair: Damped) -> Any:
    pair.rate(0.03)
    return lambda: pair.step(pair.x, pair.y)


def first_loop(pair: Damped) -> Any:
    pair.compare(2)
    return lambda: pair.step.until(pair.x, pair.y, tolerance=0.0, max_steps=1)


def smaller_batches(pair: Damped) -> Any:
    pair.compare(2)
    pair.x, pair.y = pair.x[:3].clone(), pair.y[:3].clone()
    return lambda: pair.step(pair.x, pair.y)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("begin", "options", "every"),
    [
        (first, {}, 1),
        (later, {}, 1),
        (another_rate, {}, 3),
        (first_rate, {}, 3),
        (first_loop, {}, 37),
        (smaller_batches, {"on_change": "recapture"}, 97),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_after_an_interrupted_call_steps_are_eager_s(
    device: str, begin: Any, options: dict[str, Any], every: int, interrupt_at: Any
) -> None:
    for moment in moments(device, every):
        pair = Damped(device, **options)
        call, interrupt = begin(pair), interrupt_at(moment, "tensorplay_adapt")
        try:
            with interrupt.armed():
                call()
        except KeyboardInterrupt:
            pass
        if not pair.equal():
            pair.eager()  # It had been launched before.
        assert pair.equal(), interrupt.where
        pair.compare(2)
        pair.rate(0.07)
        pair.compare(2)
        pair.step.until(pair.x, pair.y, tolerance=0.0, max_steps=2)
        for _ in range(2):
            pair.eager()
        assert pair.equal(), interrupt.where
        pair.step.close()
        if not interrupt.where:
            break
    assert moment > 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("steps", [0, 2])
def test_an_interrupted_reset_is_done_again_or_changes_nothing(
    device: str, steps: int, interrupt_at: Any
) -> None:
    refused = 0
    for moment in moments(device, 1):
        pair = Damped(device)
        if steps:
            begun = pair.step.snapshot()
            pair.compare(steps)
        else:
            pair.compare(2)
            begun = pair.step.snapshot()
            pair.compare(1)
        begin = [one.clone() for one in begun._tensors.values()]
        interrupt = interrupt_at(moment, "tensorplay_adapt")
        try:
            with interrupt.armed():
                pair.step.reset_to(begun)
        except KeyboardInterrupt:
            pass
        try:
            pair.step(pair.x, pair.y)
        except GraphStateError:
            refused += 1
        pair.step.reset_to(begun)
        found = pair.step.snapshot()
        assert found.fresh is begun.fresh
        assert all(map(torch.equal, found._tensors.values(), begin))
        # Eager's twin from the same state.
        pair.sides[1][0].load_state_dict(pair.model.state_dict())
        twin = pair.sides[1][1]
        if begun.fresh:
            twin.state.clear()
        else:
            twin.load_state_dict(copy.deepcopy(pair.optimizer.state_dict()))
        pair.compare(3)
        pair.step.close()
        if not interrupt.where:
            break
    assert moment > 1
    assert bool(refused) is bool(steps) or device != "cpu"
