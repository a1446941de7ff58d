"""Inputs and a small module whose every element has a gradient, for the tests of backwards."""

from __future__ import annotations

import pytest
from torch import nn

from .callables import rand

GRADS = pytest.mark.parametrize("param_grads", ["autograd", "in_graph"])


def leaf(device, *shape):
    return rand(device, *(shape or (3, 4)), requires_grad=True)


def mlp(device):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).to(device)
