"""Forwards in flight and their backwards, in any order and number, or refused by name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .backwards import GRADS, leaf, mlp
from .callables import rand


@GRADS
def test_a_second_backward_is_refused_unless_it_was_provided_for(device, param_grads):
    """B8: torch's version replays it over whatever is in the buffers by then."""
    module = mlp(device)
    eager = copy.deepcopy(module)
    x = leaf(device)
    tp.make_graphed_callables(module, (x,), param_grads=param_grads)
    loss = module(x).square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(tp.StaleGraph, match="ran already") as caught:
        loss.backward()
    assert "retain_graph=True" in caught.value.remedy
    tp.release(module)
    module.zero_grad()
    tp.make_graphed_callables(module, (x,), param_grads=param_grads, retain_graph=True)
    other = x.detach().clone().requires_grad_()
    x.grad = None
    loss, expected = module(x).square().sum(), eager(other).square().sum()
    for _ in range(3):
        loss.backward(retain_graph=True)
        expected.backward(retain_graph=True)
        assert torch.equal(x.grad, other.grad)
        for mine, theirs in zip(module.parameters(), eager.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)


@GRADS
def test_a_forward_that_took_the_memory_of_a_pending_backward(device, param_grads):
    """B6: torch's version gives the gradients of the later forward, silently."""
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),), param_grads=param_grads)
    first = module(leaf(device))
    second = module(leaf(device))
    with pytest.raises(tp.StaleGraph, match="a later forward") as caught:
        first.sum().backward()
    assert "slots=N" in caught.value.remedy
    assert all(p.grad is None for p in module.parameters())
    second.sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_a_forward_whose_result_is_dropped_needs_no_slot(device, twins):
    pair = twins(mlp(device), leaf(device))
    for _ in range(3):
        pair.call(leaf(device))
        pair.step(leaf(device))


def test_a_forward_without_grad_leaves_a_pending_backward_alone(device, twins):
    """A teacher's or an evaluation's forward between the two is common."""
    pair = twins(mlp(device), leaf(device))
    for _ in range(2):
        result, expected = pair.call(leaf(device))
        inputs = pair.inputs
        with torch.no_grad():
            pair.call(rand(device, 3, 4))
        result.square().sum().backward()
        expected.square().sum().backward()
        pair.inputs = inputs
        pair.check()


@pytest.mark.parametrize("slots", [2, 3])
def test_slots_are_forwards_in_flight(device, twins, slots):
    """Siamese nets and pipelines: forwards first, backwards in any order."""
    pair = twins(mlp(device), leaf(device), slots=slots)
    for order in (range(slots), reversed(range(slots))):
        flights = [(*pair.call(leaf(device)), pair.inputs) for _ in range(slots)]
        for n in order:
            result, expected, inputs = flights[n]
            result.square().sum().backward()
            expected.square().sum().backward()
            pair.inputs = inputs
            pair.check()
    flights = [pair.call(leaf(device)) for _ in range(slots + 1)]
    with pytest.raises(tp.StaleGraph, match="a later forward"):
        flights[0][0].sum().backward()
    for result, _ in flights[1:]:
        result.sum().backward()


def test_a_siamese_loss_over_two_slots(device, twins):
    pair = twins(mlp(device), leaf(device), slots=2)
    for _ in range(3):
        first = pair.call(leaf(device))
        inputs = pair.inputs
        second = pair.call(leaf(device))
        for n in range(2):
            (first[n] - second[n]).square().mean().backward()
        pair.check()
        pair.inputs = inputs
        pair.check()


def test_one_forward_one_backward_pipeline(device, twins):
    """1F1B over two slots: Megatron-LM issue 422 got NaN gradients from one."""
    pair = twins(mlp(device), leaf(device), slots=2)
    flights = [(*pair.call(leaf(device)), pair.inputs)]
    for _ in range(5):
        flights.append((*pair.call(leaf(device)), pair.inputs))
        result, expected, inputs = flights.pop(0)
        result.square().sum().backward()
        expected.square().sum().backward()
        pair.inputs = inputs
        pair.check()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x):
        shared = self.body(x).tanh()
        return {"left": self.left(shared), "right": self.right(shared).exp(), "pick": shared > 0}


@GRADS
def test_a_backward_from_some_of_the_outputs(device, twins, param_grads):
    """torch's version gives the parameters of a head that is left out zeros in place of None."""
    pair = twins(TwoHeads().to(device), leaf(device), param_grads=param_grads)
    for keys in (("left",), ("left", "right"), ("right",), ("left",), ("right", "left")):
        result, expected = pair.call(leaf(device))
        sum(result[key].square().sum() for key in keys).backward()
        sum(expected[key].square().sum() for key in keys).backward()
        pair.check()
        if keys == ("left",):
            pair.graphed.zero_grad()
            pair.eager.zero_grad()


def test_outputs_that_are_left_out_bring_no_nan(device, twins):
    """Zeros would: 0 · inf, where eager never looks."""

    class Log(nn.Module):
        def forward(self, x):
            return x * 2, x.log()

    pair = twins(Log().to(device), leaf(device))
    x = torch.zeros(3, 4, device=device, requires_grad=True)
    result, expected = pair.call(x)
    result[0].sum().backward()
    expected[0].sum().backward()
    pair.check()


def test_backwards_from_one_output_after_another(device, twins):
    pair = twins(TwoHeads().to(device), leaf(device))
    for _ in range(2):
        result, expected = pair.call(leaf(device))
        for key in ("left", "right"):
            result[key].square().sum().backward(retain_graph=True)
            expected[key].square().sum().backward(retain_graph=True)
            pair.check()


@GRADS
def test_parameters_changed_between_forward_and_backward(device, param_grads):
    """Eager refuses it; a replay would read the new values, as if they had been there before."""
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),), param_grads=param_grads)
    loss = module(leaf(device)).square().sum()
    with torch.no_grad():
        module[2].weight.add_(1)
    with pytest.raises(tp.StaleGraph, match=r"since the forward: parameter '2\.weight'"):
        loss.backward()
    module(leaf(device)).square().sum().backward()


def test_a_buffer_that_a_later_forward_moves_before_the_backward(device):
    """Eager counts the write and refuses the backward, so a replay must not go ahead."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            with torch.no_grad():
                self.scale.lerp_(x.abs().mean(0), 0.5)
            return x * self.scale

    module = Scaled().to(device)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (leaf(device),), slots=2)
    for one, error in ((module, tp.StaleGraph), (eager, RuntimeError)):
        first = one(leaf(device))
        one(leaf(device)).sum().backward()
        with pytest.raises(error, match=r"scale|modified by an inplace operation"):
            first.sum().backward()
        first = one(leaf(device))
        with torch.no_grad():
            one(rand(device, 3, 4))
        with pytest.raises(error, match=r"scale|modified by an inplace operation"):
            first.sum().backward()


def test_a_parameter_that_the_backward_does_not_read_may_change_before_it(device, twins):
    """Nobody saves a bias; and of the first layer's weight only its own gradient would have use."""
    pair = twins(nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device), rand(device, 3, 4))
    result, expected = pair.call(rand(device, 3, 4))
    with torch.no_grad():
        for module in pair.modules():
            for parameter in module.parameters():
                parameter.add_(1)
    result.square().sum().backward()
    expected.square().sum().backward()
    pair.check()


def test_a_frozen_parameter_changed_before_the_backward(device):
    module = nn.Linear(4, 4).to(device).requires_grad_(False)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (leaf(device),))
    for one, error in ((module, tp.StaleGraph), (eager, RuntimeError)):
        loss = one(leaf(device)).sum()
        with torch.no_grad():
            one.weight.add_(1)
        with pytest.raises(error):
            loss.backward()


def test_the_oldest_forward_gives_way_when_slots_run_out(device):
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),), slots=2)
    module(leaf(device)).sum().backward()
    flights = [module(leaf(device)) for _ in range(3)]
    with pytest.raises(tp.StaleGraph, match="a later forward"):
        flights[0].sum().backward()
    for result in flights[1:]:
        result.sum().backward()
