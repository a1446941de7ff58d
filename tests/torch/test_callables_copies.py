"""Copies and pickles of graphed modules are without graphs, and go their own way."""

from __future__ import annotations

import copy
import io
import pickle
import types

import pytest
import torch
from torch import nn

import tensorplay_torch as tp


def model(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).to(device)


def saved(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "save": saved,
    "a copy of a copy": lambda module: copy.copy(copy.copy(module)),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_in_the_other_mode_is_as_eager_s(device, copied):
    x = torch.rand(8, 4, device=device)
    module = model(device)
    expected = copied(copy.deepcopy(module)).eval()(x)
    graphed = tp.make_graphed_callables(module, (x,))
    other = copied(graphed).eval()
    assert graphed.training
    assert torch.equal(other(x), expected)
    assert graphed.forward.counts.replayed == 0
    assert not {"forward", "__getstate__"} & vars(other).keys()
    graphed(x)
    assert graphed.forward.counts.replayed == 1
    tp.release(graphed)
    assert not {"forward", "__getstate__"} & vars(graphed).keys()


def test_a_shallow_copy_shares_parameters_as_eager_s_does(device):
    x = torch.rand(8, 4, device=device)
    graphed = tp.make_graphed_callables(nn.Linear(4, 4, device=device), (x,))
    other = copy.copy(graphed)
    assert other.weight is graphed.weight
    other.weight = nn.Parameter(torch.zeros_like(graphed.weight))
    with torch.no_grad():
        assert torch.equal(other(x), other.bias.expand(8, 4))


def test_a_forward_of_the_instance_s_own_goes_along(device):
    module = nn.Linear(4, 4, device=device)
    module.forward = types.MethodType(lambda self, x: x @ self.weight * 3, module)
    x = torch.rand(8, 4, device=device)
    graphed = tp.make_graphed_callables(module, (x,), allow_unused_input=True)
    other = copy.deepcopy(graphed)
    with torch.no_grad():
        other.weight.zero_()
        assert torch.equal(other(x), torch.zeros(8, 4, device=device))
        assert torch.equal(graphed(x), x @ graphed.weight * 3)


class Stated(nn.Linear):
    """A module with a state of its own making."""

    def __getstate__(self):
        return {**self.__dict__, "note": "kept"}


def test_a_state_of_the_class_s_own_making_is_kept(device):
    x = torch.rand(8, 4, device=device)
    graphed = tp.make_graphed_callables(Stated(4, 4, device=device), (x,))
    other = copy.copy(graphed)
    assert other.note == "kept"
    assert "forward" not in vars(other)
    assert torch.equal(other(x), graphed(x))
