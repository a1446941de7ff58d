"""Tensors that stay where they are and are read in another way, and state that moves."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import tensorplay_adapt.forms as adapt_forms
from tensorplay_adapt.forms import Forms
from tensorplay_core.errors import StaleGraph
from tensorplay_torch.resources import signatures

from .optimizers import adamw, sgd

CHANGES = {
    "shape": (lambda t: set_data(t, t.data[:2]), r" has shape \(2, 4\), had \(4, 4\)"),
    "transposed data": (lambda t: set_data(t, t.data.t()), r" has strides \(1, 4\)"),
    "as_strided_": (
        lambda t: t.as_strided_((4, 4), (1, 4)),
        r" has strides \(1, 4\), had \(4, 1\)",
    ),
    "dtype": (lambda t: set_dtype(t), " has dtype torch.int32, had torch.float32"),
    "neg": (lambda t: set_data(t, torch._neg_view(t.data)), " has negative bit True, had False"),
    "requires_grad": (lambda t: t.requires_grad_(not t.requires_grad), r"\.requires_grad is"),
    "offset": (lambda t: set_data(t, torch.ones(5, 4)[1:]), " moved to other memory"),
}


def set_data(tensor, data):
    tensor.data = data


def set_dtype(tensor):
    # At the same address.
    other = torch.empty(0, dtype=torch.int32)
    other.set_(tensor.data.view(torch.int32))
    torch.utils.swap_tensors(tensor, other)


MODES = {
    "plain": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.fixture(params=["guards", "no guards"])
def guards(request, monkeypatch):
    """With torch's own check, and where this torch has none."""
    if request.param == "no guards":
        monkeypatch.setattr("tensorplay_adapt.forms.guard_of", lambda tensors: None)
    return request.param


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_form_that_changed_is_told_in_each_mode(guards, change, mode):
    act, words = CHANGES[change]
    with torch.inference_mode(False):
        tensor, other = torch.ones(4, 4), torch.ones(3)
        forms = Forms({other: "other", tensor: "weight"}, {})
    with MODES[mode]():
        assert forms.unchanged()
        assert forms.unchanged()
    with torch.inference_mode(False), torch.no_grad():
        act(tensor)
    with MODES[mode]():
        assert not forms.unchanged()
        assert re.match(f"weight{words}", next(forms.differences()))
    assert not forms.unchanged()


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_learned_once(monkeypatch, mode):
    made = []

    def counting(tensors):
        made.append(len(tensors))
        return signatures.guard_of(tensors)

    monkeypatch.setattr("tensorplay_adapt.forms.guard_of", counting)
    forms = Forms({torch.ones(4, 4): "one", nn.Parameter(torch.ones(3)): "two"}, {})
    slow = []
    now = adapt_forms._now
    monkeypatch.setattr(adapt_forms, "_now", lambda tensors: slow.append(1) or now(tensors))
    with MODES[mode]():
        for _ in range(5):
            assert forms.unchanged()
    assert forms.unchanged()
    assert len(slow) <= 1
    assert len(made) == 1 + len(slow)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_a_tensor_that_became_a_nested_one_reaches_no_guard():
    tensor = torch.ones(4, 4)
    forms = Forms({tensor: "weight"}, {})
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    torch.utils.swap_tensors(tensor, nested)
    assert not forms.unchanged()
    assert any("weight" in line for line in forms.differences())


@pytest.mark.parametrize("of", ["parameter", "buffer", "state"])
@pytest.mark.parametrize("change", ["shape", "transposed data", "as_strided_"])
def test_a_form_that_changed_is_named(twins, device, of, change):
    def model():
        made = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
        made[1].register_buffer("table", torch.ones(4, 4))
        return made

    pair = twins(sgd, model=model, device=device)
    pair.run(2)
    last, optimizer = pair.ours.model[1], pair.ours.optimizer
    tensor, name = {
        "parameter": (last.weight, r"1\.weight"),
        "buffer": (last.table, r"1\.table"),
        "state": (
            optimizer.state[last.weight]["momentum_buffer"],
            r"optimizer\.state\[1\.weight\]\['momentum_buffer'\]",
        ),
    }[of]
    with torch.no_grad():
        CHANGES[change][0](tensor)
    # How state is read takes turns, two tensors a call; it has four.
    with pytest.raises(StaleGraph, match=name + CHANGES[change][1]):
        for _ in range(2 if of == "state" else 1):
            pair.step(*pair.batch())


def move(optimizer):
    """What is usually done to move an optimizer to another device."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.data = value.data.clone()


def renew(optimizer):
    for state in optimizer.state.values():
        for value in state.values():
            value.set_(torch.zeros_like(value))


def swap(optimizer):
    for state in optimizer.state.values():
        for value in state.values():
            torch.utils.swap_tensors(value, torch.full_like(value, 0.5))


@pytest.mark.parametrize("change", [move, renew, swap])
@pytest.mark.parametrize("make", [sgd, adamw])
def test_state_that_moves_is_named_or_captured_anew(twins, make, change):
    pair = twins(make)
    pair.run(3)
    change(pair.ours.optimizer)
    with pytest.raises(StaleGraph, match=r"optimizer\.state\[first\.weight\]\['.*'\] moved"):
        pair.step(*pair.batch())
    pair = twins(make, captured={"on_change": "recapture"})
    pair.run(6, change=lambda number, optimizer: change(optimizer) if number == 3 else None)
    assert pair.step.captures == 2


class Bare(nn.Module):
    """Has no parameters, buffers or parts of its own."""

    def forward(self, x):
        for one in (*self._buffers.values(), *self._parameters.values()):
            x = x * one
        for part in self.children():
            x = part(x)
        return x


ADDED = {
    "_buffers": lambda module: module.register_buffer("mask", torch.full((4,), 2.0)),
    "_parameters": lambda module: module.register_parameter("mask", nn.Parameter(torch.ones(4))),
    "_modules": lambda module: module.add_module("mask", nn.Tanh()),
}


@pytest.mark.parametrize("kind", ADDED)
def test_what_is_registered_where_there_was_nothing_of_the_kind(twins, device, kind):
    pair = twins(sgd, model=lambda: nn.Sequential(nn.Linear(8, 4), Bare()), device=device)
    pair.run(2)
    ADDED[kind](pair.ours.model[1])
    with pytest.raises(StaleGraph, match=rf"1\.{kind} has 1 entries, had 0"):
        pair.step(*pair.batch())
    delattr(pair.ours.model[1], "mask")
    pair.run(2)
