"""Gradients that reach leaves are eager's, whoever looks on and whatever else reaches them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .callables import assert_gradients_equal, leaf, mlp, rand

Scene = Callable[[nn.Module, torch.Tensor, torch.Tensor], list[Any]]
"""Takes a module, its input and a gradient; returns what it saw, beside the gradients."""


def plain(m, x, g):
    m(x).backward(g)
    return []


def twice(m, x, g):
    for _ in range(2):
        m(x).backward(g)
    return []


def emptied(m, x, g):
    m(x).backward(g)
    for one in m.parameters():
        one.grad = None
    m(x).backward(g * 3)
    return []


def zeroed(m, x, g):
    m(x).backward(g)
    m.zero_grad(set_to_none=False)
    m(x).backward(g)
    return []


def kept(m, x, g):
    """The gradients that are there are added to in place."""
    m(x).backward(g)
    before = [one.grad for one in m.parameters()]
    versions = [one._version for one in before]
    m(x).backward(g)
    return [
        [one.grad is was for one, was in zip(m.parameters(), before, strict=True)],
        [one._version > was for one, was in zip(before, versions, strict=True)],
    ]


def hook_of_a_parameter(m, x, g):
    seen = []
    handle = m[0].weight.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    m(x).backward(g)
    handle.remove()
    m(x).backward(g)
    return seen


def hook_after_accumulation(m, x, g):
    seen = []
    m[2].bias.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad.clone()))
    for _ in range(2):
        m(x).backward(g)
    return seen


def hooks_of_nodes(m, x, g):
    seen: dict[int, torch.Tensor] = {}
    held = []
    for place, one in enumerate(m.parameters()):
        node = torch.autograd.graph.get_gradient_edge(one).node
        node.register_prehook(lambda grads: (grads[0] * 2,))
        node.register_hook(
            lambda _, grads, place=place: seen.update({place: grads[0].clone()}) or None
        )
        held.append(node)
    m(x).backward(g)
    return [seen[place] for place in range(len(held))]


def hook_of_several(m, x, g):
    seen = []
    torch.autograd.graph.register_multi_grad_hook(list(m.parameters()), seen.append)
    m(x).backward(g)
    return [[one.clone() for one in grads] for grads in seen]


def steps_in_the_backward(m, x, g):
    def step(one):
        with torch.no_grad():
            one -= 0.1 * one.grad
        one.grad = None

    handles = [one.register_post_accumulate_grad_hook(step) for one in m.parameters()]
    m(x).backward(g)
    for handle in handles:
        handle.remove()
    return [one.detach().clone() for one in m.parameters()]


def used_elsewhere(m, x, g):
    """What eager sums before it adds is not added one by one."""
    y = m(x)
    (y * g).sum().add((m[0].weight * 0.1).square().sum()).backward()
    m[0].weight.grad.mul_(1 / 3)
    y = m(x)
    torch.autograd.backward([y, (m[0].weight * 0.3).sin()], [g, torch.ones_like(m[0].weight)])
    return []


def two_calls(m, x, g):
    m(x).backward(g)
    try:
        (m(x) + 0.3 * m(x)).backward(g)
    except tp.StaleGraph as error:
        return [type(error)]
    return []


def chosen(m, x, g):
    found = torch.autograd.grad(m(x), [x, m[0].weight], g)
    m(x).backward(g, inputs=[m[2].bias])
    return list(found)


def retained(m, x, g):
    y = m(x)
    y.backward(g, retain_graph=True)
    # What was kept for another backward leads where it led.
    pending, leaves = [y.grad_fn], []
    while pending:
        node = pending.pop()
        pending += [one for one, _ in node.next_functions if one is not None]
        leaves.append(getattr(node, "variable", None))
    return [any(one is leaf for one in leaves) for leaf in (x, *m.parameters())]


def shared_gradient(m, x, g):
    """Two parameters of one form whose gradients are the same memory."""
    for one in m.parameters():
        one.grad = torch.zeros_like(one)
    m[2].bias.grad = m[0].weight.grad[0]
    m(x).backward(g)
    return []


def other_strides(m, x, g):
    weight = m[0].weight
    weight.grad = torch.ones(weight.shape[::-1], device=weight.device).t()
    m(x).backward(g)
    return [weight.grad.stride()]


def requiring_gradient(m, x, g):
    weight = m[0].weight
    weight.grad = torch.ones_like(weight).requires_grad_() * 2
    with torch.no_grad():
        weight.grad.detach_()
    m(x).backward(g)
    return [weight.grad.requires_grad]


def through_what_came_before(m, x, g):
    w = torch.ones_like(x, requires_grad=True)
    m(x * w).backward(g)
    m(x * w).backward(g * 2)
    return [w.grad]


def hook_of_the_last_node(m, x, g):
    """What it returns is what leaves get."""
    y = m(x)
    seen = []
    y.grad_fn.register_hook(
        lambda made, grads: (
            seen.append(len(made) > 0)
            or tuple(one * 0 if one is not None else None for one in made)
        )
    )
    y.backward(g)
    return seen


def frozen_after_the_forward(m, x, g):
    m(x).backward(g)
    y = m(x)
    m[0].weight.requires_grad_(False)
    y.backward(g)
    m[0].weight.requires_grad_(True)
    return []


def no_gradient_comes(m, x, g):
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y * 2

        @staticmethod
        def backward(ctx, grad):
            return None

    Stop.apply(m(x)).backward(g)
    return []


SCENES: list[Scene] = [
    plain, twice, emptied, zeroed, kept, hook_of_a_parameter, hook_after_accumulation,
    hooks_of_nodes, hook_of_several, steps_in_the_backward, used_elsewhere, two_calls, chosen,
    retained, shared_gradient, other_strides, requiring_gradient, through_what_came_before,

]  # fmt: skip


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")
@pytest.mark.usefixtures("exact")
def test_gradients_of_leaves_are_eager_s(device, scene):
    eager = mlp(device)
    graphed = copy.deepcopy(eager)
    x, g = rand(device, 6, 4), rand(device, 6, 4)
    wants = scene is not through_what_came_before
    inputs = [x.clone().requires_grad_(wants) for _ in range(2)]
    tp.make_graphed_callables(graphed, (leaf(device),), slots=2)
    saw = [scene(module, one, g) for module, one in zip((eager, graphed), inputs, strict=True)]
    torch.testing.assert_close(saw[1], saw[0], rtol=0, atol=0)
    assert_gradients_equal([inputs[1], *graphed.parameters()], [inputs[0], *eager.parameters()])
    assert graphed.forward.counts.replayed > 0


class Pair(nn.Module):
    """Two outputs of one weight."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x, y):
        return self.body(x), self.body(y)


@pytest.mark.parametrize("options", [{}, {"param_grads": "in_graph"}], ids=["autograd", "in_graph"])
@pytest.mark.usefixtures("exact")
def test_a_backward_of_each_output(device, options):
    eager = Pair().to(device)
    graphed = copy.deepcopy(eager)
    tp.make_graphed_callables(graphed, (leaf(device), leaf(device)), **options)
    x, y, g = rand(device, 6, 4), rand(device, 6, 4), rand(device, 6, 3)
    inputs = [[one.clone().requires_grad_() for one in (x, y)] for _ in range(2)]
    for module, given in zip((eager, graphed), inputs, strict=True):
        for _ in range(2):
            for one in module(*given):
                one.backward(g)
    assert_gradients_equal([*inputs[1], *graphed.parameters()], [*inputs[0], *eager.parameters()])


@pytest.mark.usefixtures("exact")
def test_a_graph_that_is_kept_gives_its_gradients_again(device):
    eager = mlp(device)
    graphed = copy.deepcopy(eager)
    tp.make_graphed_callables(graphed, (leaf(device),), retain_graph=True)
    x, g = rand(device, 6, 4), rand(device, 6, 4)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for module, given in zip((eager, graphed), inputs, strict=True):
        y = module(given)
        y.backward(g, retain_graph=True)
        y.backward(g)
    assert_gradients_equal([inputs[1], *graphed.parameters()], [inputs[0], *eager.parameters()])


@pytest.mark.parametrize(
    "ask",
    [
        lambda y, m: y.backward(),
        lambda y, m: y.backward(inputs=[m[0].weight]),
        lambda y, m: torch.autograd.grad(y, [m[0].weight], allow_unused=True),
    ],
    ids=["backward", "of chosen inputs", "grad"],
)
def test_what_is_asked_for_after_a_backward_is_refused(device, ask):
    module = tp.make_graphed_callables(mlp(device), (leaf(device),))
    y = module(rand(device, 6, 4).requires_grad_()).sum()
    y.backward()
    before = [one.grad.clone() for one in module.parameters()]
    with pytest.raises(RuntimeError):
        ask(y, module)
    assert all(map(torch.equal, before, [one.grad for one in module.parameters()]))


@pytest.mark.parametrize("how", ["a hook", "a callback"])
def test_a_backward_that_failed_leaves_nothing_to_ask_for(device, how):
    """Its gradients may be there in part, as eager's; asking for them again is refused."""

    class Odd(Exception):
        pass

    def fail(*_):
        raise Odd

    def call_back(grad):
        torch.autograd.Variable._execution_engine.queue_callback(fail)

    module = tp.make_graphed_callables(mlp(device), (leaf(device),))
    x = leaf(device)
    y = module(x)
    x.register_hook(fail) if how == "a hook" else y.register_hook(call_back)
    with pytest.raises(Odd):
        y.sum().backward()
    x._backward_hooks = None
    with pytest.raises(tp.StaleGraph):
        torch.autograd.grad(y.sum(), [module[0].weight], allow_unused=True)
    with pytest.raises(tp.StaleGraph):
        y.sum().backward(inputs=[module[0].weight])


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch is older than 2.10")
def test_a_gradient_may_have_another_dtype(device):
    eager = mlp(device)
    graphed = copy.deepcopy(eager)
    tp.make_graphed_callables(graphed, (leaf(device),))
    x, g = rand(device, 6, 4), rand(device, 6, 4)
    for module in (eager, graphed):
        module[0].weight.grad_dtype = torch.float64
        for _ in range(2):
            module(x.clone().requires_grad_()).backward(g)
    assert eager[0].weight.grad.dtype is torch.float64
    assert_gradients_equal(list(graphed.parameters()), list(eager.parameters()))
