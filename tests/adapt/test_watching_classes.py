"""What a step notices of code that its module's class has from others, and what it does not mind."""

from __future__ import annotations

import pytest
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


def test_a_global_of_an_attributes_name_is_none_that_is_read(twins, device, monkeypatch):
    pair = twins(sgd, model=Plain, device=device)
    pair.run(2)
    monkeypatch.setitem(globals(), "limit", 2.0)
    assert pair.step.stale == ()
    pair.run(2)
