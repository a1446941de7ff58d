"""What code that ran in a capture reads by name is looked at, whatever called that code."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn, optim

from tensorplay_core.errors import StaleGraph

from . import readers
from .readers import (
    LOSSES,
    Called,
    Decorated,
    Derived,
    Keeping,
    Net,
    Own,
    Parent,
    Step,
    hooked,
    mse,
)


def put(owner, name, value):
    """A change by ``monkeypatch``, which undoes it."""
    return lambda step, patch: patch.setattr(owner(step), name, value)


def model(step):
    return step.model


def kind(step):
    return type(step.model)


def replaced(step, patch):
    del patch
    for one in step.model.teacher[0].parameters():
        one.data = torch.ones_like(one)


def another_factor(step, patch):
    del step
    patch.setitem(vars(readers), "FACTOR", 2.0)


def wrapped(step, patch):
    before = step.optimizer.step
    patch.setattr(step.optimizer, "step", lambda: before())


CASES = {
    "a loss of the module": ({"loss": lambda m: m.loss}, put(model, "temperature", 2.0)),
    "a loss that reads the module": (
        {"loss": lambda m: lambda o, y: mse(o / m.temperature, y)},
        put(model, "temperature", 2.0),
    ),
    "a transform of the module": ({"transform": lambda m: m.clip}, put(model, "limit", 0.001)),
    "a transform that reads it": (
        {"transform": lambda m: lambda: nn.utils.clip_grad_norm_(m.parameters(), m.limit)},
        put(model, "limit", 0.001),
    ),
    "another method of a part": (
        {"make": Parent},
        put(lambda step: step.model.net, "temperature", 2.0),
    ),
    "a parent": ({"make": Parent}, put(lambda step: step.model.layers[1], "skipped", True)),
    "a call": ({"make": Called}, put(model, "limit", 2.0)),
    "a decorator": (
        {"make": Decorated},
        another_factor,
    ),
    "a hook": (
        {"make": hooked("module")},
        another_factor,
    ),
    "a hook of a tensor": (
        {"make": hooked("tensor")},
        another_factor,
    ),
    "a function of a module": (
        {"loss": lambda m: lambda o, y: LOSSES.focal(o, y)},
        put(lambda step: LOSSES, "GAMMA", 2.0),
    ),
    "another function there": (
        {"loss": lambda m: lambda o, y: LOSSES.focal(o, y)},
        put(lambda step: LOSSES, "focal", mse),
    ),
    "a tensor of a class": ({}, put(kind, "table", torch.ones(4))),
    "a list of a class": ({}, lambda step, patch: patch.setattr(Net, "entries", [2.0, 2.0])),
    "an entry of a class": ({}, lambda step, patch: patch.setitem(Net.kinds, "a", 2.0)),
    "a method of a class": ({}, put(kind, "post", lambda self, x: x * 2.0)),
    "a key that went": ({}, lambda step, patch: patch.delitem(step.model.flags, "scale")),
    "an array that was written": ({}, lambda step, patch: step.model.array.fill(2.0)),
    "memory of a hidden module": ({}, replaced),
    "the mode of a hidden module": ({}, lambda step, patch: step.model.teacher[0].train()),
    "a part of a hidden module": (
        {},
        lambda step, patch: step.model.teacher[0].__setitem__(1, nn.ReLU()),
    ),
    "a dict of an optimizer": (
        {"optimizer": Own},
        lambda step, patch: patch.setitem(step.optimizer.extra, "rate", 2.0),
    ),
    "the class of an optimizer": ({"optimizer": Derived}, put(lambda step: Own, "rate", 2.0)),
    "a global of an optimizer": ({"optimizer": Own}, another_factor),
    "another step of an optimizer": ({}, wrapped),
}


@pytest.mark.parametrize("name", CASES)
def test_what_it_reads_is_noticed(device, name, monkeypatch):
    options, change = CASES[name]
    monkeypatch.setattr(Net, "table", torch.ones(4, device=device))
    step = Step(**options, device=device)
    for _ in range(3):
        step()
    assert step.step.stale == ()
    change(step, monkeypatch)
    assert step.step.stale
    with pytest.raises(StaleGraph):
        for _ in range(30):
            step()
    with pytest.raises(StaleGraph):  # And goes on being noticed.
        step()


def test_what_a_hook_only_fills_is_no_dependency():
    seen = {"mean": torch.zeros(())}

    def logged(module, given, result):
        del module, given
        seen["mean"] = result.detach().mean()

    net = Net()
    net.register_forward_hook(logged)
    step = Step(lambda: net)
    for _ in range(30):
        step()
        with torch.no_grad():  # Evaluation in between runs the hook.
            net(step.batch[0])


@pytest.mark.parametrize("kind", [optim.AdamW, type("Somebodys", (optim.AdamW,), {})])
def test_a_schedule_that_is_made_later_is_no_change(kind):
    step = Step(optimizer=lambda parameters: kind(parameters, lr=0.1, fused=True))
    step()
    schedule = optim.lr_scheduler.ExponentialLR(step.optimizer, 0.5)
    before = step.model.linear.weight.detach().clone()
    for _ in range(3):
        step()
        schedule.step()
    assert not torch.equal(before, step.model.linear.weight)


@pytest.mark.parametrize(
    "harmless",
    [
        lambda step: step.optimizer.state[torch.zeros(())],
        lambda step: step.optimizer.state.update(x={}),
        lambda step: setattr(step.model, "array", step.model.array.copy()),
        lambda step: setattr(step.model, "note", "of no interest"),
        lambda step: step.optimizer.state[step.model.linear.weight].update(k=numpy.ones(2)),
    ],
    ids=["an empty entry", "an entry", "an equal array", "an attribute", "an equal state"],
)
def test_after_a_harmless_change_looks_are_short_again(harmless):
    step = Step(optimizer=Keeping)
    step()
    changes = step.step._runner._changes
    assert changes.unchanged()
    harmless(step)
    for _ in range(40):
        step()
    assert all(changes.unchanged() for _ in range(40))
    assert step.step.stale == ()


def test_a_tensor_that_code_writes_into_is_no_mere_container():
    buffer = torch.zeros(4)

    class Writing(Net):
        def __init__(self):
            super().__init__()
            self.memory = torch.zeros(4)

        def forward(self, x):
            with torch.no_grad():
                buffer[:] = x.sum()
                self.memory[:] = x.sum()
            return self.linear(x)

    step = Step(Writing)
    step()
    assert torch.equal(step.model.memory, step.batch[0].sum().expand(4))
    buffer = torch.ones(4)
    with pytest.raises(StaleGraph, match="buffer"):
        step()


class Telling(Net):
    def forward(self, x):
        return self.linear(x) * self.flags.setdefault("scale", 1.0)


class Sum:
    """Adds up in a tensor, which the graph writes where it is."""

    def __init__(self):
        self.total = torch.zeros(())

    def __call__(self, prediction, y):
        loss = mse(prediction, y)
        self.total += loss.detach()
        return loss


def test_a_method_that_fills_and_tells_is_a_read():
    step = Step(Telling)
    for _ in range(3):
        step()
    step.model.flags["scale"] = 3.0
    with pytest.raises(StaleGraph, match="scale"):
        for _ in range(30):
            step()


def test_a_tensor_that_is_only_added_to_is_a_dependency():
    loss = Sum()
    step = Step(loss=lambda model: loss)
    assert torch.equal(step(), loss.total)
    loss.total = torch.zeros(())
    with pytest.raises(StaleGraph, match="total"):
        step()
