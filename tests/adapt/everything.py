"""A training, and all of it that a capture must leave alone."""

from __future__ import annotations

import gc
import random

import numpy
import torch
from torch import nn, optim

from tensorplay_torch import is_current_stream_capturing

from .steps import mse


class Same:
    """Equal where the object is the same one."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value is other.value

    __hash__ = None

    def __repr__(self):
        return f"{type(self.value).__name__} at {id(self.value):#x}"


def bound(names):
    """What each name is bound to, and what that holds where it is a container."""

    def held(value):
        if isinstance(value, dict):
            return {name: Same(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [Same(one) for one in value]
        return set(value) if isinstance(value, set) else None

    return {name: (Same(value), held(value)) for name, value in names.items()}


class Everything:
    """What a capture must leave alone, as it is now."""

    def __init__(self, model, optimizer, *, keep_keys=True):
        self.model, self.optimizer, self.keep_keys = model, optimizer, keep_keys
        self.tensors = [(one, one.data_ptr()) for one in model.state_dict(keep_vars=True).values()]
        self.values = [one.detach().clone() for one, _ in self.tensors]
        self.versions = [one._version for one, _ in self.tensors]
        self.grads = [
            (one, one.grad, None if one.grad is None else one.grad.clone())
            for one in model.parameters()
        ]
        self.modes = [module.training for module in model.modules()]
        self.state = {
            key: {
                name: (v, v.clone() if isinstance(v, torch.Tensor) else v) for name, v in s.items()
            }
            for key, s in optimizer.state.items()
        }
        self.groups = [bound(group) for group in optimizer.param_groups]
        self.random = self._random()
        self.torch = self._torch()
        self.attributes = [bound(vars(module)) for module in model.modules()]

    def _random(self):
        states = [torch.get_rng_state(), random.getstate(), repr(numpy.random.get_state())]
        if torch.cuda.is_available():
            states.append(torch.cuda.get_rng_state())
        return states

    def _torch(self):
        facts = [
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_enabled("cuda"),
            torch.is_autocast_cache_enabled(),
            gc.isenabled(),
            is_current_stream_capturing(),
        ]
        if torch.cuda.is_available():
            facts += [torch.cuda.current_stream(), torch.cuda.current_device()]
        return facts

    def check(self):
        for (one, address), value, version in zip(
            self.tensors, self.values, self.versions, strict=True
        ):
            assert torch.equal(one, value)
            assert one.data_ptr() == address
            assert one._version == version
        for one, grad, value in self.grads:
            assert one.grad is grad
            assert grad is None or torch.equal(grad, value)
        assert [module.training for module in self.model.modules()] == self.modes
        assert [bound(vars(module)) for module in self.model.modules()] == self.attributes
        if self.keep_keys:
            assert self.optimizer.state.keys() == self.state.keys()
        for key, entries in self.state.items():
            assert self.optimizer.state[key].keys() == entries.keys()
            for name, (tensor, value) in entries.items():
                assert self.optimizer.state[key][name] is tensor
                assert not isinstance(tensor, torch.Tensor) or torch.equal(tensor, value)
        assert [bound(group) for group in self.optimizer.param_groups] == self.groups
        for now, before in zip(self._random(), self.random, strict=True):
            same = torch.equal(now, before) if isinstance(now, torch.Tensor) else now == before
            assert same
        assert self._torch() == self.torch


def training(device, *, warm=False):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)
    ).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=0.1, fused=True, capturable=True)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    if warm:
        mse(model(x), y).backward()
        optimizer.step()
    return model, optimizer, x, y
