"""What an optimizer keeps in containers: refused where a block changes it, put back in place."""

from __future__ import annotations

import copy
from collections import UserList, defaultdict
from collections.abc import MutableMapping

import numpy as np
import pytest
import torch
from torch import nn, optim

import tensorplay_torch as tp
from tensorplay_core import OperationRefused


class Stepping:
    def __init__(self, optimizer) -> None:
        self.model, self.x = nn.Linear(3, 2), torch.randn(4, 3)
        self.optimizer = optimizer(self.model.parameters())

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).square().sum().backward()
        self.optimizer.step()


class Nests(optim.Optimizer):
    """Keeps in containers what changes."""

    def __init__(self, parameters, of) -> None:
        super().__init__(parameters, {"held": {"count": 0}})
        self.of = of

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("stats", {"count": 0, "mean": torch.zeros(())})
                state.setdefault("queue", [4.0, 3.0, 2.0, 1.0])
                state.setdefault("number", np.int64(0))
                state.setdefault("array", np.array(0))
                state.setdefault("first", True)
                self.of(state, group)
                parameter.sub_(parameter.grad)


NESTED = {
    "number": lambda s, g: s["stats"].update(count=s["stats"]["count"] + 1),
    "tensor": lambda s, g: s["stats"].update(mean=s["stats"]["mean"] + 1),
    "setting": lambda s, g: g["held"].update(count=g["held"]["count"] + 1),
    "queue": lambda s, g: s["queue"].pop(),
    "number of NumPy's": lambda s, g: s.update(number=s["number"] + np.int64(1)),
    "array": lambda s, g: s["array"].fill(s["array"] + 1),
    "removed": lambda s, g: s.pop("first"),
    "removed setting": lambda s, g: g.pop("held", None),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_containers_hold_is_looked_at(record, name):
    step = Stepping(lambda p: Nests(p, lambda *_: None))
    step()
    step.optimizer.of = NESTED[name]
    before = copy.deepcopy(step.optimizer.state_dict())
    owners = [*step.optimizer.state.values(), *step.optimizer.param_groups]
    held = [[*one.values()] for one in owners]
    with pytest.raises(OperationRefused, match=r"Nests\.step"):
        record(step)
    now = step.optimizer.state_dict()
    assert repr(now) == repr(before)
    assert all(
        one is other
        for was, state in zip(held, owners, strict=True)
        for one, other in zip(was, state.values(), strict=True)
    )
    step.optimizer.of = lambda *_: None
    record(step).replay()


def test_what_was_bound_in_the_capture_before_a_step_is_refused(record):
    step = Stepping(lambda p: optim.SGD(p, lr=0.1, momentum=0.9))
    step()
    states = list(step.optimizer.state.values())

    def body():
        for state in states:
            state["momentum_buffer"] = state["momentum_buffer"] * 0.5
        step()

    with pytest.raises(OperationRefused, match=r"'momentum_buffer'.* was created inside"):
        record(body)


def test_state_that_is_loaded_inside_a_capture_is_refused_and_put_back(record):
    step = Stepping(lambda p: optim.SGD(p, lr=0.1, momentum=0.9))
    step()
    saved = copy.deepcopy(step.optimizer.state_dict())
    state, groups = step.optimizer.state, step.optimizer.param_groups

    def body():
        step()
        step.optimizer.load_state_dict(saved)

    with pytest.raises(OperationRefused, match="'momentum_buffer'"):
        record(body)
    assert step.optimizer.state is state
    assert step.optimizer.param_groups is groups


class Mapping(MutableMapping):
    """State as wrappers of optimizers keep it: a mapping, and no dict."""

    def __init__(self) -> None:
        self.held = defaultdict(dict)

    def __getitem__(self, key):
        return self.held[key]

    def __setitem__(self, key, value):
        self.held[key] = value

    def __delitem__(self, key):
        del self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


WRAPPED = {
    "mapping": lambda one: setattr(one, "state", Mapping()),
    "list of a user's": lambda one: setattr(one, "param_groups", UserList(one.param_groups)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_optimizers_with_mappings_and_lists_of_their_own(name):
    pair = []
    for _ in range(2):
        parameter = torch.nn.Parameter(torch.ones(3))
        made = optim.SGD([parameter], lr=0.1, momentum=0.9)
        WRAPPED[name](made)
        parameter.grad = torch.ones(3)
        made.step()
        pair.append((parameter, made))
    (ours, captured), (theirs, eager) = pair
    with tp.graph(tp.CUDAGraph(device="cpu")) as g:
        captured.step()
    for _ in range(3):
        g.replay()
        eager.step()
    assert torch.equal(ours, theirs)
    state = dict(captured.state)
    with pytest.raises(OperationRefused), tp.graph(tp.CUDAGraph(device="cpu")):
        captured.state[ours]["count"] = 1
        captured.step()
        captured.state[ours]["count"] = 2
    assert dict(captured.state) == state
