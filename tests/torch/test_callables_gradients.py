"""Gradients of graphed callables: owned, accumulated, hooked, and equal to eager."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorplay_torch as tp
from tests.equality import assert_all_equal

from .backwards import GRADS, leaf, mlp
from .callables import rand


@GRADS
def test_several_backwards_accumulate(device, twins, param_grads):
    """B7, torch issue 181723: its version hands out static buffers, which gives 2·g2."""
    pair = twins(mlp(device), leaf(device), param_grads=param_grads)
    for _ in range(4):
        pair.step(leaf(device))


@GRADS
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_either_way(device, twins, param_grads, set_to_none):
    pair = twins(mlp(device), leaf(device), param_grads=param_grads)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in pair.modules()]
    for n in range(6):
        pair.step(leaf(device))
        if n % 2:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)


def test_gradients_are_the_caller_s_own(device):
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),))
    kept = []
    for _ in range(3):
        x = leaf(device)
        module(x).square().sum().backward()
        kept.append([(p.grad, p.grad.clone()) for p in (x, *module.parameters())])
        module.zero_grad()
    for grads in kept:
        for grad, before in grads:
            assert torch.equal(grad, before)


def test_gradients_taken_by_autograd_grad(device, twins):
    pair = twins(mlp(device), leaf(device))
    for _ in range(3):
        x = leaf(device)
        result, expected = pair.call(x)
        other = pair.inputs[1][0][0]
        found = torch.autograd.grad(result.square().sum(), [other, *pair.graphed.parameters()])
        wanted = torch.autograd.grad(expected.square().sum(), [x, *pair.eager.parameters()])
        assert_all_equal(found, wanted)
        assert all(p.grad is None for p in pair.graphed.parameters())
    result, expected = pair.call(leaf(device))
    weight = next(iter(pair.graphed.parameters()))
    (found,) = torch.autograd.grad(result.sum(), weight)
    (wanted,) = torch.autograd.grad(expected.sum(), next(iter(pair.eager.parameters())))
    assert torch.equal(found, wanted)


def test_gradients_of_expanded_and_other_strides(device, twins):
    """`sum()` brings an expanded gradient, a transposed loss a transposed one."""
    pair = twins(mlp(device), leaf(device))
    for reduce in (
        lambda y: y.sum(),
        lambda y: y.t().contiguous().square().sum(),
        lambda y: y[0].sum(),
        lambda y: y.double().sum(),
        lambda y: torch.stack([y, y]).sum(0).T[1].sum(),
    ):
        result, expected = pair.call(leaf(device))
        reduce(result).backward()
        reduce(expected).backward()
        pair.check(exact=device == "cpu")


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_on_parameters_run_at_every_backward(device, when):
    module = mlp(device)
    calls, accumulated = [], []

    def register():
        module[0].weight.register_hook(lambda grad: calls.append(grad.clone()) or grad * 2)
        module[2].bias.register_post_accumulate_grad_hook(lambda p: accumulated.append(p.grad))

    x = leaf(device)
    if when == "before":
        register()
    tp.make_graphed_callables(module, (x,))
    assert calls == []
    if when == "after":
        register()
    eager = copy.deepcopy(module)
    for n in range(1, 4):
        module(x).square().sum().backward()
        assert len(calls) == len(accumulated) == n
        wanted = torch.autograd.grad(eager(x).square().sum(), eager[0].weight)[0]
        assert torch.equal(calls[-1], wanted)
        assert torch.equal(module[0].weight.grad, wanted * 2)
        module.zero_grad()


def test_hooks_on_inputs_outputs_and_retained_gradients(device):
    module = mlp(device)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (leaf(device),))
    seen = []
    results = []
    x = rand(device, 3, 4)
    for one in (module, eager):
        start = x.clone().requires_grad_()
        middle = start * 2
        middle.retain_grad()
        middle.register_hook(lambda grad: seen.append(grad.clone()))
        y = one(middle)
        y.retain_grad()
        y.square().sum().backward()
        results.append((start.grad, middle.grad, y.grad))
    assert_all_equal(*results)
    assert torch.equal(*seen)


def test_unused_inputs_are_refused_by_name_or_equal_eager(device, twins):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, unused, batch):
            return self.used(x) * batch["scale"]

    def sample():
        return leaf(device), leaf(device, 2), {"scale": leaf(device, 4), "rest": leaf(device)}

    module = Module().to(device)
    for warmup in (0, 1):
        with pytest.raises(tp.CaptureError) as caught:
            tp.make_graphed_callables(module, sample(), num_warmup_iters=warmup)
        for name in ("args[1]", "args[2]['rest']", "'spare.weight'", "'spare.bias'"):
            assert name in caught.value.met
        assert "args[0]" not in caught.value.met
        assert "used.weight" not in caught.value.met
        assert "allow_unused_input=True" in caught.value.remedy
    pair = twins(module, *sample(), allow_unused_input=True)
    for _ in range(3):
        pair.step(*sample())
    assert pair.graphed.spare.weight.grad is None


@GRADS
def test_frozen_parameters_and_inputs_without_grad(device, twins, param_grads):
    module = mlp(device)
    module[0].requires_grad_(False)
    pair = twins(module, rand(device, 3, 4), param_grads=param_grads)
    for _ in range(3):
        pair.step(rand(device, 3, 4))
    assert pair.graphed[0].weight.grad is None
    assert pair.graphed[2].weight.grad is not None


@GRADS
@pytest.mark.usefixtures("exact")
def test_shared_parameters_get_the_sum(device, twins, param_grads):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids):
            return self.out(self.embed(ids).tanh())

    ids = torch.tensor([[1, 2, 2], [0, 6, 5]], device=device)
    pair = twins(Tied().to(device), ids, param_grads=param_grads)
    for _ in range(3):
        pair.step(ids)


def test_tensors_that_a_function_closes_over_get_gradients(device):
    """torch's version differentiates its arguments alone, and says nothing of the rest."""
    weight, frozen = leaf(device, 4, 4), rand(device, 4)
    module = nn.Linear(4, 4).to(device)

    def work(x):
        return module(x @ weight) + frozen

    x = leaf(device)
    leaves = [x, weight, *module.parameters()]
    wanted = torch.autograd.grad(work(x).square().sum(), leaves)
    graphed = tp.make_graphed_callables(work, (x,))
    for _ in range(2):
        found = torch.autograd.grad(graphed(x).square().sum(), leaves)
        assert_all_equal(found, wanted)
    graphed(x).square().sum().backward()
    assert torch.equal(weight.grad, wanted[1])


def test_trainable_buffers_get_gradients(device):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            return x * self.scale

    module = Module().to(device)
    module.scale.requires_grad_()
    x = leaf(device)
    wanted = torch.autograd.grad(module(x).square().sum(), [x, module.scale])
    tp.make_graphed_callables(module, (x,))
    found = torch.autograd.grad(module(x).square().sum(), [x, module.scale])
    assert_all_equal(found, wanted)


def test_history_from_before_the_call_is_refused(device):
    weight = leaf(device, 4, 4)
    scaled = weight * 2

    def work(x):
        return x @ scaled

    with pytest.raises(tp.CaptureError, match=r"computed before the call \(by MulBackward0\)"):
        tp.make_graphed_callables(work, (leaf(device),))
    with torch.no_grad():
        tp.make_graphed_callables(work, (leaf(device),))


def test_a_hook_on_a_closed_over_tensor_is_refused(device):
    weight = leaf(device, 4, 4)
    weight.register_hook(lambda grad: grad * 2)
    with pytest.raises(tp.CaptureError, match="has a hook"):
        tp.make_graphed_callables(lambda x: x @ weight, (leaf(device),))


def test_double_backward_is_refused_by_name(device):
    module = mlp(device)
    x = leaf(device)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (x,))
    (found,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(eager(x).square().sum(), x)
    assert torch.equal(found, wanted)
    with pytest.raises(tp.GraphStateError, match="differentiating twice"):
        found.square().sum().backward()


def test_reentrant_checkpoint_is_refused_by_name(device):
    """B19."""

    class Module(nn.Module):
        def __init__(self, **options):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.options = options

        def forward(self, x):
            return checkpoint(lambda y: self.linear(y).tanh(), x, **self.options) * 2

    for warmup in (0, 1):
        with pytest.raises(tp.OperationRefused, match="use_reentrant=False"):
            tp.make_graphed_callables(
                Module(use_reentrant=True).to(device), (leaf(device),), num_warmup_iters=warmup
            )
    module = Module(use_reentrant=False, preserve_rng_state=False).to(device)
    x = leaf(device)
    wanted = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    tp.make_graphed_callables(module, (x,))
    for _ in range(2):
        found = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
        assert_all_equal(found, wanted)


def test_custom_functions_inside(device, twins):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x * 3

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return Square.apply(self.linear(x))

    pair = twins(Module().to(device), leaf(device))
    for _ in range(3):
        pair.step(leaf(device))


def test_sparse_gradients_are_refused(device):
    module = nn.Embedding(5, 3, sparse=True).to(device)
    with pytest.raises(tp.CaptureError, match="sparse") as caught:
        tp.make_graphed_callables(module, (torch.tensor([1, 2], device=device),))
    assert "sparse=False" in caught.value.remedy or "dense" in caught.value.remedy
