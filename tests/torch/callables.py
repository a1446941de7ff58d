"""Inputs, a small module, and how gradients are compared, for the tests of graphed callables."""

from __future__ import annotations

import torch
from torch import nn


def rand(device, *shape, **options):
    return torch.randn(*shape, device=device, **options)


def leaf(device, *shape):
    return rand(device, *(shape or (6, 4)), requires_grad=True)


def mlp(device):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)


def assert_gradients_equal(ours, wanted):
    for one, other in zip(ours, wanted, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            assert one.grad.dtype == other.grad.dtype
            assert torch.equal(one.grad, other.grad)
