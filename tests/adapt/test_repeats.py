"""Steps that do other work in each call, or whose tensors moved; conditionals may decide anew."""

from __future__ import annotations

import copy
import itertools
import random
from dataclasses import dataclass

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import OperationRefused, StaleGraph
from tensorplay_torch import while_loop
from tests.equality import assert_all_equal

mse = nn.functional.mse_loss


@dataclass
class Config:
    """What a module keeps, changed by its forward."""

    n: int = 0

    def __next__(self):
        self.n += 1
        return self.n


class Draws(random.Random):
    """Random numbers of one's own."""

    __next__ = random.Random.random


class Scaled(nn.Module):
    """Multiplies by the next number of a source."""

    def __init__(self, source):
        super().__init__()
        self.linear, self.source = nn.Linear(8, 4), source

    def forward(self, x):
        return self.linear(x) * next(self.source)


class Looping(nn.Module):
    """Counts its calls on the device, and loops as often."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        with torch.no_grad():
            zero = torch.zeros_like(self.calls)
            times = while_loop(lambda n: n < self.calls, lambda n: n + 1, zero)
        return self.linear(x) * times


def batch(device):
    return torch.randn(12, 8, device=device), torch.randn(12, 4, device=device)


def captured(model, device, **options):
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return CudaGraphAdaptationStep.capture(
        model, optimizer, *batch(device), mse, device=device, **options
    )


@pytest.mark.parametrize("warmup", [2, 3])
@pytest.mark.parametrize("source", [Config, itertools.count, lambda: Draws(0)])
def test_a_number_that_changes_from_call_to_call_is_refused(device, source, warmup):
    model = Scaled(source()).to(device)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(OperationRefused, match=r"in one call and .* in the next"):
        captured(model, device, warmup_steps=warmup)
    assert_all_equal(model.state_dict(), before)


def test_the_gradient_transform_is_compared(device):
    model, scales = nn.Linear(8, 4).to(device), itertools.count(1)

    def scale():
        model.weight.grad.mul_(next(scales))

    with pytest.raises(OperationRefused, match=r"mul_.* gets 2 in one call and 3 in the next"):
        captured(model, device, gradient_transform=scale)


def test_loops_may_take_other_turns_in_each_call(device):
    model = Looping().to(device)
    twin = copy.deepcopy(model)
    step = captured(model, device)
    optimizer = optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        x, y = batch(device)
        optimizer.zero_grad()
        loss = mse(twin(x), y)
        loss.backward()
        optimizer.step()
        assert torch.equal(step(x, y), loss.detach())
    assert torch.equal(model.linear.weight, twin.linear.weight)


def test_a_tensor_of_the_loss_that_moved_is_noticed(device):
    weight, model = torch.ones(4, device=device), nn.Linear(8, 4).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    x, y = batch(device)

    def weighted(prediction, target):
        return ((prediction - target).square() * weight).mean()

    step = CudaGraphAdaptationStep.capture(model, optimizer, x, y, weighted, device=device)
    step(x, y)
    weight.data = torch.zeros_like(weight)
    assert step.stale == ("loss_function: weight moved to other memory",)
    with pytest.raises(StaleGraph, match="weight moved to other memory"):
        for _ in range(20):
            step(x, y)
