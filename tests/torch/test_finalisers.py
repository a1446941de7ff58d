"""Finalisers that end graphed callables run in the midst of others' captures and calls."""

from __future__ import annotations

import copy
import os

import torch

import tensorplay_torch as tp
from tensorplay_core.testing.moments import Moments, in_a_thread

from .callables import mlp
from .twins import assert_equal

# One place in so many is tried: there are a thousand, and EVERY=1 tries them all.
EVERY = int(os.environ.get("EVERY", "41"))


def lifetime(module, x):
    """Graphs a module, takes a step, ends the graphs; returns what it computed."""
    x = x.clone().requires_grad_()
    graphed = tp.make_graphed_callables(copy.deepcopy(module), (x,), num_warmup_iters=1)
    for _ in range(2):
        y = graphed(x)
        y.square().sum().backward()
    with torch.no_grad():
        again = graphed(x)
    tp.release(graphed)
    return y.detach(), again, x.grad, [parameter.grad for parameter in graphed.parameters()]


def test_a_finaliser_may_end_a_graphed_callable_at_any_moment(device):
    module, x = mlp(device), torch.randn(3, 4, device=device)
    expected = lifetime(module, x)
    reference = Moments(0, lambda: None)
    assert_equal(in_a_thread(lambda: lifetime(module, x), reference), expected)
    for number in list(reference.first.values())[::EVERY]:
        other = tp.make_graphed_callables(copy.deepcopy(module), (x,), num_warmup_iters=1)
        other(x).sum().backward()
        moments = Moments(number, lambda other=other: tp.release(other))
        assert_equal(in_a_thread(lambda: lifetime(module, x), moments), expected)
