"""What a module got after its capture is noticed if its code asks for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tensorplay_torch as tp


class Bare(nn.Module):
    """Holds nothing that it asks for."""

    def forward(self, x):
        if hasattr(self, "mask"):
            x = x * self.mask
        for part in self.children():
            x = part(x)
        if self.training:
            self.last = x.detach()
        return x.relu()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bare, self.gain = nn.Linear(4, 4), Bare(), None

    def forward(self, x):
        y = self.bare(self.first(x))
        return y * self.gain if hasattr(self, "gain") and self.gain is not None else y


def graphed(device, **options):
    module, x = Layer().to(device).eval(), torch.rand(2, 4, device=device)
    tp.make_graphed_callables(module, (x,), **options)
    for _ in range(20):
        module(x)
    return module, x


SETS = {
    "a number": ("mask", lambda m: setattr(m.bare, "mask", 2.0)),
    "a buffer": ("mask", lambda m: m.bare.register_buffer("mask", m.first.bias.detach() + 1)),
    "a parameter": ("mask", lambda m: setattr(m.bare, "mask", nn.Parameter(m.first.bias + 1))),
    "a submodule": ("parts", lambda m: m.bare.add_module("more", nn.Sigmoid())),
    "a method": ("relu", lambda m: setattr(m.bare, "relu", torch.sigmoid)),
    "a forward": ("forward", lambda m: setattr(m.bare, "forward", torch.sigmoid)),
    "a tensor": ("mask", lambda m: setattr(m.bare, "mask", m.first.bias.detach() + 1)),
    "nothing": ("gain is gone", lambda m: delattr(m, "gain")),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("what", SETS)
def test_what_a_module_got_later_is_noticed(device, grad, what):
    module, x = graphed(device)
    name, change = SETS[what]
    change(module)
    with torch.set_grad_enabled(grad), pytest.raises(tp.StaleGraph, match=name):
        for _ in range(20 if grad else 320):
            module(x)


def test_it_is_followed_by_a_capture_anew(device):
    module, x = graphed(device, on_change="recapture")
    module.bare.mask = 2.0
    for _ in range(20):
        result = module(x)
    assert torch.equal(result, Layer.forward(module, x))


def test_what_no_code_asks_for_is_no_change(device):
    module, x = graphed(device)
    for step in range(40):
        setattr(module.bare, f"note_{step}", step)
        module(x)
    assert module.forward.counts.replayed == 60


def test_what_code_only_sets_is_no_change(device):
    module, x = graphed(device)
    module.train()(x)
    assert hasattr(module.bare, "last")
    module.eval()
    for _ in range(40):
        module(x)
    assert module.forward.counts.replayed == 60


def test_sections_that_are_graphed_later_are_no_change(device):
    module, x = graphed(device)
    tp.make_graphed_callables(module.bare, (x,))
    for _ in range(40):
        module(x)
    assert module.forward.counts.replayed == 60
