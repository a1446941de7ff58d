"""Modules, losses and optimizers whose code reads what it computes with by name."""

from __future__ import annotations

import functools
import types

import numpy
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep

mse = nn.functional.mse_loss
LOSSES = types.ModuleType("losses")
exec(
    "GAMMA = 1.0\ndef focal(o, y):\n    return ((o - y).abs() ** 2 * GAMMA).mean()\n", vars(LOSSES)
)
FACTOR = 1.0


def scaled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) * FACTOR

    return wrapper


class Net(nn.Module):
    table, entries, kinds = torch.ones(4), [1.0, 2.0], {"a": 1.0}

    def __init__(self):
        super().__init__()
        self.linear, self.temperature, self.limit = nn.Linear(8, 4), 1.0, 0.1
        self.flags, self.array = {"scale": 2.0}, numpy.array([1.5])
        self.teacher = [nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5)).eval()]
        for one in self.teacher[0].parameters():
            one.requires_grad_(False)

    def forward(self, x):
        y = self.post(self.linear(x)) * self.table * self.entries[0] * self.kinds["a"]
        if "scale" in self.flags:
            y = y * float(self.array[0])
        return y + self.teacher[0](x)

    def post(self, x):
        return x * 1.0

    def loss(self, prediction, y):
        return mse(prediction / self.temperature, y)

    def clip(self):
        return nn.utils.clip_grad_norm_(self.parameters(), self.limit)

    def features(self, x):
        return self(x) / self.temperature


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        for layer in self.layers:
            layer.skipped = False

    def forward(self, x):
        x = self.net.features(x)
        for layer in self.layers:
            x = x if layer.skipped else layer(x)
        return x


class Called(Net):
    def __call__(self, x):
        return super().__call__(x) * self.limit


class Decorated(Net):
    @scaled
    def forward(self, x):
        return self.linear(x)


class Own(optim.Optimizer):
    rate = 1.0

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.extra = {"rate": 1.0}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(one.grad, alpha=-group["lr"] * self.extra["rate"] * self.rate * FACTOR)


class Derived(Own):
    pass


class Keeping(Own):
    """Keeps an array, which is there before the first step."""

    def __init__(self, parameters):
        super().__init__(parameters)
        for one in self.param_groups[0]["params"]:
            self.state[one]["k"] = numpy.ones(2)


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1)


def hooked(kind):
    """A net with a hook that reads a global."""

    def make():
        net = Net()
        if kind == "module":
            net.register_forward_hook(lambda module, given, result: result * FACTOR)
        else:
            net.linear.weight.register_hook(lambda gradient: gradient * FACTOR)
        return net

    return make


class Step:
    def __init__(
        self, make=Net, loss=None, transform=None, optimizer=sgd, *, device="cpu", **options
    ):
        torch.manual_seed(0)
        self.model = make().to(device)
        for inner in [getattr(self.model, "net", self.model)]:
            for hidden in getattr(inner, "teacher", []):
                hidden.to(device)
        self.optimizer = optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.batch = torch.randn(3, 8).to(device), torch.randn(3, 4).to(device)
        self.step = CudaGraphAdaptationStep.capture(
            self.model,
            self.optimizer,
            *self.batch,
            loss(self.model) if loss else mse,
            gradient_transform=transform(self.model) if transform else None,
            device=device,
            **options,
        )

    def __call__(self):
        return self.step(*self.batch)
