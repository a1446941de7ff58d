"""torch.func's transforms inside callables that no gradient is wanted of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

TRANSFORMS = {
    "grad": lambda x: torch.func.grad(lambda v: v.square().sum())(x),
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x[0]),
    "jacrev of grad": lambda x: torch.func.jacrev(torch.func.grad(lambda v: v.pow(3).sum()))(x[0]),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(lambda v: v.square().sum()))(x),
}


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_transforms_of_what_needs_no_gradient(device, kind):
    function = TRANSFORMS[kind]
    graphed = tp.graphed(function)
    for _ in range(3):
        x = torch.rand(3, 4, device=device)
        assert torch.equal(graphed(x), function(x))


def test_a_transform_of_a_module_under_no_grad(device):
    model = nn.Linear(4, 4, device=device)

    def slope(x):
        return torch.func.grad(lambda v: model(v).square().sum())(x)

    graphed = tp.graphed(slope)
    with torch.no_grad():
        for _ in range(3):
            x = torch.rand(3, 4, device=device)
            assert torch.equal(graphed(x), slope(x))
