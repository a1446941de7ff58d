"""What the first call of a module makes is a constant, or the step is refused by name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import OperationRefused

mse = nn.functional.mse_loss


class Lazy(nn.Module):
    """Something is made at the first call, by ``make``, and used by ``use`` at each."""

    def __init__(self, make, use):
        super().__init__()
        self.linear, self.made = nn.Linear(8, 4), None
        self.make, self.use = make, use

    def forward(self, x):
        y = self.linear(x)
        if self.made is None:
            self.made = self.make(y)
        return self.use(self.made, y)


class First(nn.Module):
    """Doubles what its first call returns."""

    def __init__(self):
        super().__init__()
        self.linear, self.first = nn.Linear(8, 4), True

    def forward(self, x):
        if self.first:
            self.first = False
            return self.linear(x) * 2
        return self.linear(x)


class InAList(nn.Module):
    """Keeps what the first batch decides in a list."""

    def __init__(self):
        super().__init__()
        self.linear, self.kept = nn.Linear(8, 4), []

    def forward(self, x):
        if not self.kept:
            self.kept.append(x.abs().max())
        return self.linear(x) / self.kept[0]


def running(made, y):
    with torch.no_grad():
        made.mul_(0.9).add_(y.mean(0), alpha=0.1)
    return y + made


def counting(made, y):
    return y * made.add_(1)


def plus(made, y):
    return y + made


REFUSED = {
    "a statistic": (lambda: Lazy(lambda y: torch.zeros(4), running), "made"),
    "a count": (lambda: Lazy(lambda y: torch.zeros(4), counting), "made"),
    "a scale of the first batch": (lambda: Lazy(lambda y: y.detach().abs().amax(0), plus), "made"),
    "a random start": (lambda: Lazy(lambda y: torch.randn(4), plus), "made"),
    "a branch": (First, "first"),
    "a list": (InAList, "kept"),
}


def captured(model, **options):
    torch.manual_seed(0)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batch = torch.randn(12, 8), torch.randn(12, 4)
    return CudaGraphAdaptationStep.capture(
        model, optimizer, *batch, mse, device="cpu", **options
    ), optimizer


@pytest.mark.parametrize("warmup", [1, 3])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_decides_later_steps_is_refused(kind, warmup):
    make, name = REFUSED[kind]
    model = make()
    with pytest.raises(OperationRefused, match=rf"first call sets .*{name}") as met:
        captured(model, warmup_steps=warmup)
    assert "Call it once before the capture" in str(met.value)
    assert model.made is None if isinstance(model, Lazy) else True
    model(torch.randn(12, 8))
    if kind != "a branch":
        assert captured(model, warmup_steps=warmup)


CONSTANTS = {
    "a range": lambda y: torch.arange(4.0),
    "numbers": lambda y: torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "zeros like it": lambda y: torch.zeros_like(y) + 1,
    "computed": lambda y: torch.ones(4, 4).tril().sum(0) / torch.arange(1.0, 5.0).sqrt(),
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_constants_are_fine(kind):
    torch.manual_seed(3)
    model = Lazy(CONSTANTS[kind], plus)
    twin = copy.deepcopy(model)
    step, _ = captured(model)
    optimizer = optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    assert model.made is None
    for _ in range(4):
        x, y = torch.randn(12, 8), torch.randn(12, 4)
        optimizer.zero_grad()
        loss = mse(twin(x), y)
        loss.backward()
        optimizer.step()
        assert torch.equal(step(x, y), loss.detach())
    assert torch.equal(model.linear.weight, twin.linear.weight)
