"""What a step's code depends on in Python is noticed at the next call, and named."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn, optim
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import StaleGraph

from .optimizers import sgd


class Scaled(nn.Module):
    """Reads attributes of many kinds."""

    def __init__(self):
        super().__init__()
        self.factor, self.shape, self.plain = 2.0, (16,), torch.ones(16)

    def _apply(self, fn, recurse=True):
        self.plain = fn(self.plain)
        return super()._apply(fn, recurse)

    @property
    def twice(self):
        return 2 * self.factor

    def forward(self, x):
        return (x * self.twice).view(-1, *self.shape) * self.plain


def net():
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.BatchNorm1d(16),
        nn.LeakyReLU(0.1),
        nn.LayerNorm(16),
        nn.Dropout(0.25),
        Scaled(),
        nn.Linear(16, 4),
    )


ATTRIBUTES = [
    (4, "p", 0.5),
    (1, "momentum", 0.5),
    (1, "eps", 0.5),
    (1, "track_running_stats", False),
    (2, "negative_slope", 0.5),
    (3, "eps", 0.5),
    (5, "factor", 3.0),
    (5, "shape", (4, 4)),
    (5, "plain", torch.zeros(16)),
    (2, "forward", torch.relu),
]


@pytest.mark.parametrize(("place", "name", "value"), ATTRIBUTES)
def test_attributes_that_a_forward_reads(twins, device, place, name, value):
    pair = twins(sgd, model=net, device=device)
    pair.run(2)
    module = pair.ours.model[place]
    before = getattr(module, name)
    setattr(module, name, value)
    with pytest.raises(StaleGraph, match=rf"^calling.*: {place}\.{name} is|; {place}\.{name} is"):
        pair.step(*pair.batch())
    if name == "forward":
        del module.forward
    else:
        setattr(module, name, before)
    assert pair.step.stale == ()
    pair.run(2)


def test_attributes_are_captured_anew_when_asked(twins, device):
    pair = twins(sgd, model=net, device=device, captured={"on_change": "recapture"})
    pair.run(2)
    for training in (pair.eager, pair.ours):
        training.model[4].p, training.model[1].momentum = 0.5, 0.3
    pair.run(3)
    assert pair.step.captures == 2


def double(*values):
    return None


HOOKS = {
    "forward hook of 0": lambda t: t.model[0].register_forward_hook(double),
    "forward pre-hook of 2": lambda t: t.model[2].register_forward_pre_hook(double),
    "backward hook of 1": lambda t: t.model[1].register_full_backward_hook(double),
    "backward pre-hook of the module": lambda t: t.model.register_full_backward_pre_hook(double),
    "gradient hook of 0.weight": lambda t: t.model[0].weight.register_hook(double),
    "accumulation of 6.bias": lambda t: t.model[6].bias.register_post_accumulate_grad_hook(double),
    "step pre-hook of the optimizer": lambda t: t.optimizer.register_step_pre_hook(double),
    "step post-hook of the optimizer": lambda t: t.optimizer.register_step_post_hook(double),
    "hook of all modules": lambda t: register_module_forward_hook(double),
    "hook of all optimizers": lambda t: register_optimizer_step_post_hook(double),
}


@pytest.mark.parametrize("where", HOOKS)
def test_hooks_that_come_later(twins, device, where):
    pair = twins(sgd, model=net, device=device)
    pair.run(2)
    handle = HOOKS[where](pair.ours)
    try:
        with pytest.raises(StaleGraph, match=rf"{where} \(double\) was registered"):
            pair.step(*pair.batch())
        with pytest.raises(StaleGraph, match=where):
            pair.step.verify(1)
    finally:
        handle.remove()
    assert pair.step.stale == ()
    pair.run(2)


def test_hooks_that_go(twins, device):
    handles = []

    def model():
        made = net()
        handles.append(made[0].register_forward_hook(lambda module, args, output: output * 2))
        return made

    pair = twins(sgd, model=model, device=device)
    pair.run(3)
    handles[0].remove()
    with pytest.raises(StaleGraph, match=r"a forward hook of 0 .* was removed"):
        pair.step(*pair.batch())


def test_hooks_elsewhere_are_no_change(twins, device):
    pair = twins(sgd, model=net, device=device)
    pair.run(2)
    other = nn.Linear(2, 2)
    other.register_forward_hook(double)
    other.weight.register_hook(double)
    pair.run(2)
    assert pair.step.captures == 1


class Weighted:
    """A loss with a weight, as an object."""

    def __init__(self):
        self.weight = 1.0

    def __call__(self, prediction, target):
        return nn.functional.cross_entropy(prediction, target) * self.weight


@pytest.mark.parametrize("kind", ["closure", "object", "tensor"])
def test_names_that_a_loss_reads(device, kind):
    weight = torch.ones((), device=device) if kind == "tensor" else 1.0
    held = Weighted()

    def loss(prediction, target):
        return nn.functional.cross_entropy(prediction, target) * weight

    torch.manual_seed(0)
    model = nn.Linear(8, 4).to(device)
    x, y = torch.randn(6, 8, device=device), torch.randint(4, (6,), device=device)
    step = CudaGraphAdaptationStep.capture(
        model,
        sgd(model.parameters()),
        x,
        y,
        held if kind == "object" else loss,
        device=device,
    )
    step(x, y)
    if kind == "tensor":
        weight.fill_(2.0)  # In place a graph reads it.
        step(x, y)
        weight = torch.ones((), device=device)
    else:
        weight = held.weight = 2.0
    with pytest.raises(StaleGraph, match=r"loss_function: .*weight is"):
        step(x, y)


class Settings:
    """Holds a number."""

    def __init__(self):
        self.weight = 1.0


class Configured(nn.Module):
    """Reads what lists, dicts and objects of its own hold."""

    def __init__(self):
        super().__init__()
        self.linear, self.first, self.rows = nn.Linear(8, 4), {"scale": 1.0}, [1.0, 2.0]
        self.other = Settings()

    def forward(self, x):
        return self.linear(x) * self.first["scale"] * self.rows[0] * self.other.weight


CONTENTS = {
    "first['scale']": lambda module: module.first.update(scale=2.0),
    "rows[0]": lambda module: module.rows.__setitem__(0, 2.0),
    "other.weight": lambda module: setattr(module.other, "weight", 2.0),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_lists_dicts_and_objects_hold_is_looked_at_in_turn(twins, name):
    pair = twins(sgd, model=Configured)
    pair.run(6)
    CONTENTS[name](pair.ours.model)
    assert any(name in line for line in pair.step.stale)
    with pytest.raises(StaleGraph, match=re.escape(name)):
        for _ in range(6):
            pair.step(*pair.batch())


def test_the_default_dtype(twins):
    pair = twins(sgd)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(StaleGraph, match=r"default dtype: .* got torch\.float64"):
            pair.step(*pair.batch())
    finally:
        torch.set_default_dtype(torch.float32)
    pair.run(2)


class Scaling(optim.SGD):
    """Somebody's own, which reads an attribute of its own."""

    factor = 1.0

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.factor = 0.5

    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                one.grad.mul_(self.factor)
        super().step()


def test_attributes_of_ones_own_optimizer(twins):
    pair = twins(Scaling)
    pair.run(2)
    pair.ours.optimizer.factor = 0.25
    with pytest.raises(StaleGraph, match=r"optimizer\.factor is 0\.25, was 0\.5"):
        pair.step(*pair.batch())
