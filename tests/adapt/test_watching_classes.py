"""What a step notices of the classes of its modules, and of the forms of its tensors."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from tensorplay_core.errors import StaleGraph

from .optimizers import sgd

limit = 1.0
"""A global that no code here reads; an attribute has its name."""


class Plain(nn.Module):
    """Reads an attribute that is no parameter."""

    def __init__(self):
        super().__init__()
        self.layer, self.limit, self.factor = nn.Linear(8, 4), nn.Tanh(), 2.0

    def forward(self, x):
        return self.limit(self.layer(x)) * self.factor


class Below(Plain):
    """Leaves that to its parent."""

    def forward(self, x):
        return super().forward(x) + 1


def test_attributes_that_a_parents_forward_reads(twins, device):
    pair = twins(sgd, model=Below, device=device)
    pair.run(2)
    pair.ours.model.factor = 3.0
    with pytest.raises(StaleGraph, match=r"the module\.factor is 3\.0, was 2\.0"):
        pair.step(*pair.batch())


def test_a_module_of_another_class(twins, device):
    pair = twins(sgd, model=Plain, device=device)
    pair.run(2)
    pair.ours.model.__class__ = Below
    with pytest.raises(StaleGraph, match="the class of the module is Below, was Plain"):
        pair.step(*pair.batch())
    pair.ours.model.__class__ = Plain
    assert pair.step.stale == ()
    pair.step(*pair.batch())


def test_a_global_of_an_attributes_name_is_none_that_is_read(twins, device, monkeypatch):
    pair = twins(sgd, model=Plain, device=device)
    pair.run(2)
    monkeypatch.setitem(globals(), "limit", 2.0)
    assert pair.step.stale == ()
    pair.run(2)


def turned(tensor):
    tensor.data = tensor.data.t()


def turned_in_place(tensor):
    with torch.no_grad():
        tensor.t_()


class Square(Plain):
    """Has a parameter that may be turned, and a buffer."""

    def __init__(self):
        super().__init__()
        self.square = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8, 8))

    def forward(self, x):
        return super().forward(self.square(x) @ self.scale)


@pytest.mark.parametrize("name", ["square.weight", "scale"])
@pytest.mark.parametrize("change", [turned, turned_in_place])
def test_another_form_at_the_same_address(twins, device, change, name):
    pair = twins(sgd, model=Square, device=device)
    pair.run(2)
    change(pair.ours.model.get_parameter(name) if "." in name else pair.ours.model.scale)
    met = rf"{name} has strides \(1, 8\), had \(8, 1\)"
    assert any(re.search(met, line) for line in pair.step.stale)
    with pytest.raises(StaleGraph, match=met):
        pair.step(*pair.batch())


class Bare(nn.Module):
    """Holds nothing that it asks for."""

    def forward(self, x):
        if hasattr(self, "mask"):
            x = x * self.mask
        for part in self.children():
            x = part(x)
        return x


SETS = {
    "a number": ("mask", lambda one: setattr(one, "mask", 2.0)),
    "a buffer": ("_buffers", lambda one: one.register_buffer("mask", torch.ones(()))),
    "a parameter": ("_parameters", lambda one: one.register_parameter("mask", None)),
    "a submodule": ("_modules", lambda one: one.add_module("more", nn.Sigmoid())),
}


@pytest.mark.parametrize("what", SETS)
def test_what_a_module_got_later(twins, device, what):
    pair = twins(sgd, model=lambda: nn.Sequential(nn.Linear(8, 4), Bare()), device=device)
    pair.run(2)
    pair.ours.model[1].note = pair.eager.model[1].note = 1
    pair.run(2)
    name, change = SETS[what]
    change(pair.ours.model[1])
    with pytest.raises(StaleGraph, match=rf"1\.{name}"):
        pair.step(*pair.batch())
