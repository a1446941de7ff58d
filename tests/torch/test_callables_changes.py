"""Modes, parameters and values that change after the capture: followed, or noticed by name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .callables import leaf, rand


def test_the_other_mode_runs_the_original_forward(device, twins):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).to(device)
    pair = twins(module, leaf(device))
    pair.step(leaf(device))
    for one in pair.modules():
        one.eval()
    pair.step(leaf(device))
    assert pair.counts == (1, 1, 1)
    for one in pair.modules():
        one.train()
    pair.step(leaf(device))
    assert pair.counts == (2, 1, 1)


def test_a_module_graphed_in_eval_mode_trains_without_graphs(device, twins):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).to(device).eval()
    pair = twins(module, leaf(device))
    pair.step(leaf(device))
    for one in pair.modules():
        one.train()
    pair.step(leaf(device))
    assert pair.counts == (1, 1, 1)


def test_a_function_follows_the_mode_of_the_modules_it_runs(device):
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    graphed = tp.make_graphed_callables(lambda x: module(x), (leaf(device),))
    module.eval()
    x = leaf(device)
    assert torch.equal(graphed(x), module(x))
    assert graphed.graphed.counts.eager == 1


def test_a_submodule_in_another_mode_is_noticed(device):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device)
    tp.make_graphed_callables(module, (leaf(device),))
    module[1].eval()
    with pytest.raises(tp.StaleGraph, match=r"1.training is False, was True"):
        for _ in range(40):
            module(leaf(device))


CHANGES = {
    "assigned state": (
        lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()), assign=True),
        "was replaced by another tensor",
    ),
    "another dtype": (lambda m: m.to(torch.bfloat16), "moved .*torch.bfloat16 .*was torch.float32"),
    "other memory": (lambda m: m._apply(torch.clone), "moved to other memory"),
    "frozen": (lambda m: m.requires_grad_(False), "requires_grad is False, was True"),
    "one replaced": (
        lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().clone())),
        "parameter '0.weight' was replaced",
    ),
    "one's data": (
        lambda m: setattr(m[2].bias, "data", m[2].bias.data.clone()),
        "parameter '2.bias' moved",
    ),
    "one frozen": (lambda m: m[0].bias.requires_grad_(False), "parameter '0.bias'.requires_grad"),
    "a buffer": (
        lambda m: setattr(m[1], "running_mean", torch.zeros_like(m[1].running_mean)),
        "buffer '1.running_mean' was replaced",
    ),
    "a part": (
        lambda m: m.append(nn.ReLU()).__delitem__(2),
        "the parts of module '' are others",
    ),
    "a number": (lambda m: setattr(m[1], "momentum", 0.5), "1.momentum is 0.5, was 0.1"),
    "a hook": (lambda m: m[2].register_forward_hook(lambda *_: None), "module '2' has hooks"),
}


@pytest.mark.parametrize(("change", "met"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("grad", [True, False])
def test_what_moved_since_the_capture_is_noticed(device, change, met, grad):
    """B13: its version goes on with stale pointers."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(device)
    tp.make_graphed_callables(module, (leaf(device),))
    with torch.set_grad_enabled(grad):
        x = leaf(device)
        module(x)
        change(module)
        with pytest.raises(tp.StaleGraph, match=met) as caught:
            for _ in range(400):
                module(x)
        assert "recapture" in caught.value.remedy
        with pytest.raises(tp.StaleGraph, match=met):
            for _ in range(400):
                module(x)
    tp.release(module)
    module(x.to(module[0].weight.dtype))


@pytest.mark.parametrize("name", ["assigned state", "another dtype", "frozen"])
def test_what_moves_every_parameter_is_noticed_by_the_next_call(device, name):
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50))).to(device)
    tp.make_graphed_callables(module, (leaf(device),))
    x = leaf(device)
    with torch.no_grad():
        for warm in range(7):
            for _ in range(warm):
                module(x)
        CHANGES[name][0](module)
        with pytest.raises(tp.StaleGraph):
            module(x)


SCALE = 2.0


def test_values_that_a_function_finds_by_name_are_noticed(device, monkeypatch):
    """A number in a closure, a global or on an object is frozen in the graph."""
    shift = 1.0
    table = rand(device, 4)

    class Trainer:
        def __init__(self):
            self.rate, self.steps = 0.5, 0

        def step(self, x):
            return x * self.rate

    trainer = Trainer()

    def plain(x):
        return x * SCALE + shift + table

    x = rand(device, 3, 4)
    one, two = tp.graphed(plain), tp.graphed(trainer.step)
    for _ in range(30):
        one(x)
        two(x)
        trainer.steps += 1
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SCALE", 3.0)
        with pytest.raises(tp.StaleGraph, match=r"global SCALE is 3.0, was 2.0"):
            for _ in range(30):
                one(x)
    shift = 4.0
    with pytest.raises(tp.StaleGraph, match=r"shift is 4.0, was 1.0"):
        for _ in range(30):
            one(x)
    shift = 1.0
    table.fill_(3)
    assert torch.equal(one(x), plain(x))
    table = table.clone()
    with pytest.raises(tp.StaleGraph, match="table is another Tensor"):
        for _ in range(30):
            one(x)
    trainer.rate = 0.25
    with pytest.raises(tp.StaleGraph, match=r"self.rate is 0.25, was 0.5"):
        for _ in range(30):
            two(x)


def test_attributes_that_forward_does_not_mention_may_change(device):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.epoch = 0

        def forward(self, x):
            return self.linear(x)

        def report(self):
            return self.epoch

    module = Module().to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4),))
    for _ in range(30):
        module.epoch += 1
        module(rand(device, 3, 4))
    assert module.forward.counts == (30, 0, 1)


def test_values_changed_in_place_are_followed(device, twins):
    pair = twins(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device), leaf(device))
    state = {
        name: torch.rand_like(v.float()).to(v.dtype) for name, v in pair.eager.state_dict().items()
    }
    for module in pair.modules():
        module.load_state_dict(state)
    pair.step(leaf(device))
    for module in pair.modules():
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1)
    pair.step(leaf(device))


def test_it_is_captured_again_when_asked_to(device, twins):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(device)
    pair = twins(module, leaf(device), on_change="recapture")
    pair.step(leaf(device))
    for n, change in enumerate(
        (CHANGES["assigned state"], CHANGES["one frozen"], CHANGES["other memory"]), start=2
    ):
        for one in pair.modules():
            change[0](one)
        for _ in range(30):
            pair.call(leaf(device))
        pair.graphed.zero_grad()
        pair.eager.zero_grad()
        pair.step(leaf(device))
        assert pair.counts.captured == n
    pair.eager.double()
    pair.graphed.double()
    for _ in range(3):
        pair.step(leaf(device).detach().double().requires_grad_())


def test_a_chain_is_captured_again_as_a_whole(device):
    eager = [nn.Linear(4, 4).to(device) for _ in range(3)]
    graphed = tp.make_graphed_callables(
        tuple(copy.deepcopy(eager)), tuple((leaf(device),) for _ in eager), on_change="recapture"
    )
    for module in (eager[1], graphed[1]):
        module.weight.data = module.weight.data.clone()
    for _ in range(4):
        x = leaf(device)
        y = eager[2](eager[1](eager[0](x)))
        z = graphed[2](graphed[1](graphed[0](x)))
        assert torch.equal(y, z)
