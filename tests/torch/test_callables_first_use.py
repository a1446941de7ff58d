"""State made at a first call and written at later ones, and inputs written past autograd's eyes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensorplay_torch as tp
from tests.equality import assert_all_equal


def rand(device, *shape, **options):
    return torch.rand(*shape, device=device, **options)


class Summing(nn.Module):
    """Adds up what it is given, in a tensor that its first call makes."""

    def __init__(self):
        super().__init__()
        self.total = None

    def forward(self, x):
        if self.total is None:
            self.total = torch.zeros_like(x)
        self.total.add_(x)
        return self.total * 1


def stepping(model, optimizer):
    def step(x):
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_state_that_the_first_call_makes_and_later_ones_write_is_refused(device):
    x, module = rand(device, 4), Summing()
    with pytest.raises(tp.OperationRefused, match="that its first call made"):
        tp.make_graphed_callables(module, (x,))
    assert module.total is None
    eager = copy.deepcopy(module)
    assert torch.equal(module(x), eager(x))
    graphed = tp.make_graphed_callables(module, (x,))
    for scale in range(4):
        assert torch.equal(graphed(x * scale), eager(x * scale))


def test_an_optimizer_inside_needs_its_state_before(device):
    torch.manual_seed(0)
    model = nn.Linear(4, 4, device=device)
    twin = copy.deepcopy(model)
    x = rand(device, 2, 4)
    optimizer = momentum(model)
    step = torch.enable_grad()(stepping(model, optimizer))
    expected = torch.enable_grad()(stepping(twin, momentum(twin)))
    graphed = tp.graphed(step)
    with torch.no_grad():
        with pytest.raises(tp.OperationRefused, match="that its first call made"):
            graphed(x)
        assert not optimizer.state
        assert model.weight.grad is None
        assert torch.equal(step(x), expected(x))
        for _ in range(4):
            assert torch.equal(graphed(x), expected(x))
    assert torch.equal(model.weight, twin.weight)
    assert torch.equal(model.weight.grad, twin.weight.grad)


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_a_backward_inside_is_refused_where_gradients_are_captured(device, warmup):
    model = nn.Linear(4, 4, device=device)
    x = rand(device, 2, 4).requires_grad_()

    def f(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    with pytest.raises(
        tp.OperationRefused, match=r"adds to .grad of parameter 'model.weight', .*args\[0\]"
    ):
        tp.make_graphed_callables(f, (x,), num_warmup_iters=warmup)
    assert x.grad is None
    assert model.weight.grad is None


def test_a_gradient_bound_on_a_closed_over_tensor_is_refused(device):
    weight = rand(device, 4).requires_grad_()

    def f(x):
        weight.grad = None
        (weight * x).sum().backward()
        return x * 2

    with pytest.raises(tp.OperationRefused, match=r"sets weight\.grad in each call"):
        tp.graphed(f)(rand(device, 4))
    assert weight.grad is None


WRITES = {
    "through .data": lambda x, mean, var: x.data.add_(1),
    "through detach": lambda x, mean, var: x.detach().add_(1),
    "running statistics": lambda x, mean, var: F.batch_norm(x, mean, var, training=True),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_inputs_written_in_any_way_are_refused(device, write):
    def f(x, mean, var):
        write(x, mean, var)
        return x * 2

    args = rand(device, 3, 4), torch.zeros(4, device=device), torch.ones(4, device=device)
    before = copy.deepcopy(args)
    with pytest.raises(tp.OperationRefused, match=r"it changes args\[\d\] in place"):
        tp.graphed(f)(*args)
    assert_all_equal(args, before)


class Kind(torch.Tensor):
    """A subclass with torch functions of its own."""


@pytest.mark.parametrize("grad", [True, False])
def test_a_subclass_where_a_plain_tensor_was_captured_is_refused(device, grad):
    x = rand(device, 4)
    f = tp.graphed(lambda x: x * 2)
    with torch.set_grad_enabled(grad):
        f(x)
        for _ in range(2):
            with pytest.raises(tp.SignatureMismatch, match=r"args\[0\]: .* got a \S+\.Kind, which"):
                f(x.as_subclass(Kind))
        assert torch.equal(f(x), x * 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_at_the_capture():
    nested = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])
    with pytest.raises(tp.ArgumentError, match=r"args\[0\] is nested"):
        tp.graphed(lambda x: x * 2)(nested)
