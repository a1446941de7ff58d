"""Tuples of callables: one pool, forwards in order, backwards in reverse."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .backwards import leaf


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
                assert all(map(torch.equal, found, wanted))
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
