"""Code of parent classes, of helpers and behind decorators is read as the callable's own."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

CALLS = 0
scale = 1.0
"""Not read by any code here as a global; an attribute has its name."""


def bare(function):
    """Decorates as if there were no ``functools.wraps``."""

    def call(*args):
        return function(*args)

    return call


def halved(module, y):
    return y / module.scale


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = 1.0
        self.config = {"scale": 1.0}

    @property
    def twice(self):
        return 2 * self.scale

    @staticmethod
    def of(module):
        return module.scale

    def scaled(self, y):
        return y * self.scale

    def forward(self, x):
        return self.scaled(self.inner(x))


class Forward(Base):
    def forward(self, x):
        return super().forward(x) + 1


class Explicit(Base):
    def forward(self, x):
        return Base.forward(self, x) + 1


class Method(Base):
    def scaled(self, y):
        return super().scaled(y) + 1


class Property(Base):
    @property
    def twice(self):
        return super().twice + 1

    def forward(self, x):
        return self.inner(x) * self.twice


class Static(Base):
    def forward(self, x):
        return self.inner(x) * self.of(self)


class Twice(Forward):
    def forward(self, x):
        return super().forward(x) + 1


class Helped(Base):
    def forward(self, x):
        return halved(self, self.inner(x))


class ByText(Base):
    def forward(self, x):
        return self.inner(x) * getattr(self, "scale")  # noqa: B009


class Decorated(Base):
    @bare
    def forward(self, x):
        return self.inner(x) * self.scale


class HoldsFunction(Base):
    def __init__(self):
        super().__init__()
        self.last = lambda y: y * self.scale

    def forward(self, x):
        return self.last(self.inner(x))


class HoldsMethod(Base):
    def __init__(self):
        super().__init__()
        self.last = functools.partial(self.scaled)

    def forward(self, x):
        return self.last(self.inner(x))


KINDS = [
    Forward,
    Explicit,
    Method,
    Property,
    Static,
    Twice,
    Helped,
    ByText,
    Decorated,
    HoldsFunction,
    HoldsMethod,
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_that_other_code_than_the_forward_reads_is_noticed(device, kind):
    module, x = kind().to(device), torch.rand(2, 4, device=device)
    tp.make_graphed_callables(module, (x,))
    module(x)
    module.scale = 3.0
    with pytest.raises(tp.StaleGraph, match=r"scale is 3\.0, was 1\.0"):
        for _ in range(20):
            module(x)


class Reads(Base):
    def forward(self, x):
        return self.inner(x) * self.config["scale"]


class ReadsAbove(Reads):
    def forward(self, x):
        return super().forward(x)


def test_a_dict_that_a_parent_reads_is_noticed(device):
    module, x = ReadsAbove().to(device), torch.rand(2, 4, device=device)
    tp.make_graphed_callables(module, (x,))
    module.config["scale"] = 3.0
    with pytest.raises(tp.StaleGraph, match=r"config\['scale'\] is another"):
        for _ in range(20):
            module(x)


class Rate(nn.Dropout):
    def forward(self, x):
        return super().forward(x)


def test_a_rate_that_a_parent_of_torchs_reads_is_noticed(device):
    module, x = nn.Sequential(Rate(0.5)), torch.rand(8, device=device)
    tp.make_graphed_callables(module, (x,))
    module[0].p = 0.0
    with pytest.raises(tp.StaleGraph, match=r"0\.p is 0\.0, was 0\.5"):
        for _ in range(320):
            module(x)


class Counts(Base):
    def forward(self, x):
        global CALLS
        CALLS += 1
        return self.inner(x)


class CountsAbove(Counts):
    def forward(self, x):
        return super().forward(x)


class CountsByName(Counts):
    def forward(self, x):
        return Counts.forward(self, x)


@pytest.mark.parametrize("kind", [Counts, CountsAbove, CountsByName])
def test_what_a_parent_sets_in_each_call_is_refused(device, kind):
    module, x = kind().to(device), torch.rand(2, 4, device=device)
    before = CALLS
    with pytest.raises(tp.OperationRefused, match="it sets global CALLS in each call"):
        tp.make_graphed_callables(module, (x,))
    assert before == CALLS


class Callable:
    factor = 1.0

    def __init__(self):
        self.scale = 1.0

    def __call__(self, x):
        return self.scaled(x)

    def scaled(self, x):
        return x * self.scale


class CallableBelow(Callable):
    def scaled(self, x):
        return super().scaled(x) + 1


@pytest.mark.parametrize("take", [lambda one: one, lambda one: one.scaled])
def test_an_object_that_is_called_is_read_through_its_parents(device, take):
    one, x = CallableBelow(), torch.rand(4, device=device)
    graphed = tp.graphed(take(one))
    graphed(x)
    one.scale = 3.0
    with pytest.raises(tp.StaleGraph, match=r"scale is 3\.0, was 1\.0"):
        for _ in range(200):
            graphed(x)


def test_a_global_of_an_attributes_name_is_none_that_is_read(device, monkeypatch):
    module, x = Base().to(device), torch.rand(2, 4, device=device)
    tp.make_graphed_callables(module, (x,))
    monkeypatch.setitem(globals(), "scale", 3.0)
    for _ in range(40):
        module(x)
    assert module.forward.counts.replayed == 40
