"""Gradients added inside the graph."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .backwards import leaf, mlp
from .callables import rand


def test_in_graph_gradients_follow_what_the_user_does_to_grad(device, twins):
    pair = twins(mlp(device), leaf(device), param_grads="in_graph")
    pair.step(leaf(device))
    pair.step(leaf(device))
    for module in pair.modules():
        module.zero_grad(set_to_none=True)
    pair.step(leaf(device))
    for module in pair.modules():
        module[0].weight.grad = None
        module[0].bias.grad = torch.ones_like(module[0].bias)
        module[2].weight.grad.mul_(3)
        module[2].bias.grad = module[2].bias.grad / 2
    theirs = pair.graphed[0].bias.grad
    for _ in range(2):
        pair.step(leaf(device))
    assert pair.graphed[0].bias.grad is theirs
    for module in pair.modules():
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
    pair.step(leaf(device))


def test_in_graph_gradients_keep_the_sign_of_zero(device, twins):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.weight

    pair = twins(Module().to(device), rand(device, 3), param_grads="in_graph")
    x = torch.tensor([-0.0, 0.0, 1.0], device=device)
    result, expected = pair.call(x)
    ones = torch.ones(3, device=device)
    result.backward(ones)
    expected.backward(ones)
    pair.check()


def test_in_graph_callables_that_share_a_parameter_add_to_one_gradient(device):
    module = nn.Linear(4, 4).to(device)
    eager = copy.deepcopy(module)
    one = tp.make_graphed_callables(lambda x: module(x), (leaf(device),), param_grads="in_graph")
    two = tp.make_graphed_callables(
        lambda x: module(x).tanh(), (leaf(device),), param_grads="in_graph"
    )
    for _ in range(2):
        x = leaf(device)
        one(x).square().sum().backward()
        two(x).square().sum().backward()
        eager(x).square().sum().backward()
        eager(x).tanh().square().sum().backward()
        assert torch.equal(module.weight.grad, eager.weight.grad)
        assert torch.equal(module.bias.grad, eager.bias.grad)


def test_in_graph_leaves_grad_alone_until_the_first_backward(device):
    module = mlp(device)
    module[0].weight.grad = torch.ones_like(module[0].weight)
    tp.make_graphed_callables(module, (leaf(device),), param_grads="in_graph")
    assert torch.equal(module[0].weight.grad, torch.ones_like(module[0].weight))
    assert module[2].weight.grad is None


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_in_graph_says_by_name_what_it_refuses(device):
    module = mlp(device)
    x = leaf(device)
    tp.make_graphed_callables(module, (x,), param_grads="in_graph")
    with pytest.raises(tp.GraphStateError, match="only chosen gradients"):
        torch.autograd.grad(module(x).sum(), x)
    with pytest.raises(tp.GraphStateError, match="only chosen gradients"):
        module(x).sum().backward(inputs=[x])
    assert all(p.grad is None for p in module.parameters())
    hook = module[2].bias.register_hook(lambda grad: grad)
    with pytest.raises(tp.GraphStateError, match=r"parameter '2.bias' has a hook"):
        module(x).sum().backward()
    hook.remove()
    hook = module[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(tp.GraphStateError, match=r"parameter '0.weight' has a hook"):
        module(x).sum().backward()
    hook.remove()
    module(x).sum().backward()
    x.grad = None
    module(x).sum().backward(create_graph=True)
    with pytest.raises(tp.GraphStateError, match="differentiating twice"):
        x.grad.sum().backward()
