"""Changes past the usual ways: names exchanged, containers replaced, dicts written directly.

With compiled parts the next call names them; without, the next one that follows another learning
rate, and else one of a few calls, as what is in dicts is looked at in turn.
"""

from __future__ import annotations

import collections
import copy

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_adapt.changes import Changes
from tensorplay_adapt.hyperparameters import Hyperparameters
from tensorplay_core.errors import StaleGraph
from tensorplay_torch.compiled import parts

ROUND = 40
"""More calls than there are things that take turns."""


class Net(nn.Module):
    """A bit of everything."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        self.first = nn.Parameter(torch.randn(4))
        self.second = nn.Parameter(torch.randn(4))
        self.sign, self.notes = 0.0, []

    def forward(self, x):
        x = self.parts["b"](torch.tanh(self.parts["a"](x))) * self.first + self.second
        return torch.copysign(x, torch.full((), self.sign, device=x.device))


def made(device, make=lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.02)):
    torch.manual_seed(0)
    net = Net().to(device)
    optimizer = make(net.parameters())
    x, y = torch.randn(5, 4, device=device), torch.randn(5, 4, device=device)
    step = CudaGraphAdaptationStep.capture(net, optimizer, x, y, nn.functional.mse_loss)
    for _ in range(3):
        step(x, y)
    return net, optimizer, step, (x, y)


def exchange_modules(net, optimizer):
    a, b = net.parts.pop("a"), net.parts.pop("b")
    net.parts["b"], net.parts["a"] = a, b


def exchange_parameters(net, optimizer):
    first, second = net.first, net.second
    del net.first, net.second
    net.second, net.first = first, second


def exchange_states(net, optimizer):
    state = optimizer.state
    first, second = state.pop(net.first), state.pop(net.second)
    rest = dict(state)
    state.clear()
    state.update({net.second: first, net.first: second, **rest})


def other_parameters(net, optimizer):
    inner = net.parts["a"]
    inner._parameters = {n: nn.Parameter(p.detach() * 2) for n, p in inner._parameters.items()}


def other_modules(net, optimizer):
    net.parts._modules = dict(net.parts._modules)


def other_attributes(net, optimizer):
    net.__dict__ = {**net.__dict__, "sign": -1.0}


def forward_for_note(net, optimizer):
    del net.notes
    net.forward = lambda x: x


def hook_past_torch(net, optimizer):
    net.parts["a"]._forward_hooks[10**6] = lambda module, args, output: output * 3


def other_hooks(net, optimizer):
    net.parts["a"]._forward_hooks = collections.OrderedDict({1: lambda m, a, out: out * 3})


def minus_zero(net, optimizer):
    net.sign = -0.0


def whole(net, optimizer):
    net.sign = 0


def other_class(net, optimizer):
    class Tagged(nn.Parameter):
        pass

    net.first.__class__ = Tagged


CHANGES = {
    exchange_modules: r"parts\._modules has the entries",
    exchange_parameters: r"the module\._parameters has the entries",
    exchange_states: r"an entry of optimizer\.state (was replaced|belongs to another parameter)",
    other_parameters: r"parts\.a\._parameters was replaced",
    other_modules: r"parts\._modules was replaced",
    other_attributes: r"the module\.sign is -1\.0, was 0\.0",
    forward_for_note: r"the module\.forward is set",
    hook_past_torch: r"a forward hook of parts\.a .* was registered",
    other_hooks: r"parts\.a\._forward_hooks was replaced",
    minus_zero: r"the module\.sign is -0\.0, was 0\.0",
    whole: r"the module\.sign is 0, was 0\.0",
    other_class: r"first is a Tagged, was a Parameter",
}


@pytest.mark.parametrize("with_rate", [False, True], ids=["alone", "with another rate"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_unusual_changes_are_named(device, change, with_rate):
    net, optimizer, step, batch = made(device)
    change(net, optimizer)
    weight = net.parts["b"].weight.detach().clone()
    if with_rate:
        optimizer.param_groups[0]["lr"] = 0.05
    if parts() is not None or with_rate:
        with pytest.raises(StaleGraph, match=CHANGES[change]):
            step(*batch)
        assert torch.equal(net.parts["b"].weight, weight)
        return
    with pytest.raises(StaleGraph, match=CHANGES[change]):
        for _ in range(ROUND):
            step(*batch)


def test_another_forward_of_a_class(device):
    class Changing(Net):
        def forward(self, x):
            return super().forward(x)

    net = Changing().to(device)
    x = torch.randn(5, 4, device=device)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    step = CudaGraphAdaptationStep.capture(net, optimizer, x, x, nn.functional.mse_loss)
    step(x, x)
    Changing.forward = lambda self, x: Net.forward(self, x) * 2
    with pytest.raises(StaleGraph, match="the forward of class Changing is another"):
        step(x, x)


@pytest.mark.parametrize("renew", [False, True], ids=["same objects", "equal ones"])
def test_what_changed_and_came_back_is_no_change(device, renew):
    net, _, step, batch = made(device)
    net.sign = -1.0
    net.sign = float("0") if renew else 0.0
    net.extra = 1
    del net.extra
    net.parts["a"].register_forward_hook(print).remove()
    for _ in range(ROUND):
        step(*batch)


def test_hyper_parameters_that_exchanged_their_names(device):
    net, optimizer, step, (x, y) = made(device, lambda p: optim.SGD(p, lr=0.1, weight_decay=0.02))
    other = copy.deepcopy(net)
    eager = optim.SGD(other.parameters(), lr=0.02, weight_decay=0.1)
    group = optimizer.param_groups[0]
    names = {"lr": "weight_decay", "weight_decay": "lr"}
    entries = [(names.get(name, name), value) for name, value in group.items()]
    group.clear()
    group.update(entries)
    for _ in range(3):
        eager.zero_grad()
        loss = nn.functional.mse_loss(other(x), y)
        loss.backward()
        eager.step()
        assert torch.equal(step(x, y), loss.detach())
    for one, another in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, another)


class Interrupt(BaseException):
    """Comes at a place of the test's choice."""


@pytest.mark.parametrize("where", ["before the check", "after the first node", "before any node"])
def test_a_rate_whose_writing_was_interrupted_is_written_again(device, where, monkeypatch):
    """Also if the rate of before is back: what the nodes hold is not known."""
    net, optimizer, step, (x, y) = made(
        device,
        lambda p: (
            optim.AdamW(p, lr=0.1, foreach=False, capturable=True)
            if device == "cuda"
            else optim.AdamW(p, lr=0.1, fused=True)
        ),
    )
    other, rate = copy.deepcopy(net), optimizer.param_groups[0]["lr"]
    eager = type(optimizer)(other.parameters())
    eager.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    def interrupted(*args, **kwargs):
        raise Interrupt

    with monkeypatch.context() as patch:
        if where == "before the check":
            patch.setattr(Changes, "_look", interrupted)
        else:
            (numbers,) = step._runner._groups.graphs
            kind = type(next(node for node in numbers._nodes if node.data))
            rewrite, after = kind.rewrite, where == "after the first node"

            def torn(self, *args):
                if after:
                    rewrite(self, *args)
                raise Interrupt

            patch.setattr(kind, "rewrite", torn)
        optimizer.param_groups[0]["lr"] = 0.001
        with pytest.raises(Interrupt):
            step(x, y)
    optimizer.param_groups[0]["lr"] = rate
    for _ in range(3):
        eager.zero_grad()
        loss = nn.functional.mse_loss(other(x), y)
        loss.backward()
        eager.step()
        assert torch.equal(step(x, y), loss.detach())
    numbers = step._runner._groups.graphs[0]
    assert isinstance(numbers, Hyperparameters)
    assert not numbers._torn
    for one, another in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, another)
