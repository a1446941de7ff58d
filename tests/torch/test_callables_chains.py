"""Tuples of callables: one pool, forwards in order, backwards in reverse."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import tensorplay_torch as tp
from tests.equality import assert_all_equal

from .backwards import leaf
from .drawn_modules import LAYERS, Model, arguments, compare, ways, weighted


def chain(device, n=3, width=4):
    return [
        nn.Sequential(nn.Linear(width, 300), nn.Tanh(), nn.Linear(300, width)).to(device)
        for _ in range(n)
    ]


def test_a_chain_of_callables_trains_as_eager(device):
    eager = chain(device)
    graphed = tp.make_graphed_callables(
        tuple(copy.deepcopy(eager)), tuple((leaf(device),) for _ in eager)
    )
    for _ in range(3):
        x, other = leaf(device), None
        other = x.detach().clone().requires_grad_()
        y, z = x, other
        for one, two in zip(eager, graphed, strict=True):
            y, z = one(y), two(z)
        assert torch.equal(y, z)
        y.square().sum().backward()
        z.square().sum().backward()
        assert torch.equal(x.grad, other.grad)
        for one, two in zip(eager, graphed, strict=True):
            for p, q in zip(one.parameters(), two.parameters(), strict=True):
                assert torch.equal(p.grad, q.grad)


def test_callables_apart_in_a_tuple_in_every_order(device):
    """Backwards out of order would read memory that others have used: right, or refused."""
    eager = chain(device, 2)
    graphed = tp.make_graphed_callables(
        tuple(copy.deepcopy(eager)), tuple((leaf(device),) for _ in eager)
    )
    for forwards in ((0, 1), (1, 0)):
        for backwards in ((0, 1), (1, 0)):
            x = [leaf(device), leaf(device)]
            losses = {n: graphed[n](x[n]).square().sum() for n in forwards}
            refused = []
            for n in backwards:
                eager[n].zero_grad()
                graphed[n].zero_grad()
                wanted = torch.autograd.grad(
                    eager[n](x[n]).square().sum(), [x[n], *eager[n].parameters()]
                )
                try:
                    found = torch.autograd.grad(losses[n], [x[n], *graphed[n].parameters()])
                except tp.StaleGraph as error:
                    refused.append(error.met)
                    continue
                assert_all_equal(found, wanted)
            in_order = (forwards, backwards) == ((0, 1), (1, 0))
            assert len(refused) == (0 if in_order else 1)
            assert all("before it in the tuple" in met for met in refused)


def test_another_call_s_graphs_in_the_same_pool(device):
    """They may have been given the memory of activations that a backward still needs."""
    pool = tp.graph_pool_handle(device)
    first, second = chain(device, 2)
    for module in (first, second):
        tp.make_graphed_callables(module, (leaf(device),), pool=pool)
    x = leaf(device)
    pending = first(x)
    second(leaf(device)).sum().backward()
    with pytest.raises(tp.StaleGraph, match="another make_graphed_callables call"):
        pending.sum().backward()
    first(x).sum().backward()
    pending = second(x)
    first(x)
    with pytest.raises(tp.StaleGraph, match="another make_graphed_callables call"):
        pending.sum().backward()


def test_callables_of_separate_calls_do_not_disturb_each_other(device):
    first, second = chain(device, 2)
    copies = copy.deepcopy((first, second))
    for module in (first, second):
        tp.make_graphed_callables(module, (leaf(device),))
    x = leaf(device)
    ours = first(x), second(x)
    theirs = copies[0](x), copies[1](x)
    for n in (0, 1):
        found = torch.autograd.grad(ours[n].square().sum(), x)
        wanted = torch.autograd.grad(theirs[n].square().sum(), x)
        assert torch.equal(found[0], wanted[0])


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.usefixtures("exact")
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    parts=st.lists(
        st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=2), min_size=2, max_size=3
    ),
    way=ways,
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4),
)
def test_any_chain_of_callables_is_as_eager_s(device, parts, way, seeds):
    torch.manual_seed(5)
    eager = [Model(layers, "tensor", "tensor").to(device) for layers in parts]
    graphed = copy.deepcopy(eager)
    samples = tuple(arguments("tensor", True, 0, device) for _ in parts)
    tp.make_graphed_callables(tuple(graphed), samples, allow_unused_input=True, **way)
    for seed in seeds:
        results = []
        torch.manual_seed(seed)
        for chain in (eager, graphed):
            torch.manual_seed(seed)
            (x,) = arguments("tensor", True, seed, device)
            y = x
            for module in chain:
                y = module(y)
            weighted(y).backward()
            results.append((y, x.grad))
        compare(*results)
        for one, other in zip(eager, graphed, strict=True):
            for p, q in zip(one.parameters(), other.parameters(), strict=True):
                compare(p.grad, q.grad)
            compare(dict(one.state_dict()), dict(other.state_dict()))
