"""Tensors that lie otherwise in the memory where they were are noticed and named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tensorplay_torch as tp


class Layer(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.inner = nn.Linear(4, 4, dtype=dtype)
        self.register_buffer("scale", torch.ones(4, 4, dtype=dtype))
        self.plain = torch.ones(4, 4, dtype=dtype)

    def _apply(self, fn, recurse=True):
        self.plain = fn(self.plain)
        return super()._apply(fn, recurse)

    def forward(self, x):
        return self.inner(x) @ self.scale @ self.plain


def fewer(tensor):
    tensor.data = tensor.data[:2]


def turned(tensor):
    tensor.data = tensor.data.t()


def turned_in_place(tensor):
    with torch.no_grad():
        tensor.t_()


def conjugated(tensor):
    tensor.data = tensor.data.conj()


CHANGES = {
    fewer: r"has shape \(2, 4\), had \(4, 4\)",
    turned: r"has strides \(1, 4\), had \(4, 1\)",
    turned_in_place: r"has strides \(1, 4\), had \(4, 1\)",
    conjugated: r"has conjugate bit True, had False",
}
TENSORS = {
    "parameter 'inner.weight'": lambda module: module.inner.weight,
    "buffer 'scale'": lambda module: module.scale,
    "plain": lambda module: module.plain,
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("change", CHANGES)
def test_another_form_at_the_same_address_is_noticed(device, change, name, grad):
    dtype = torch.complex64 if change is conjugated else torch.float32
    module, x = Layer(dtype).to(device), torch.rand(3, 4, dtype=dtype, device=device)
    tp.make_graphed_callables(module, (x,))
    tensor = TENSORS[name](module)
    with torch.set_grad_enabled(grad):
        for _ in range(20):
            module(x)
        address = tensor.data_ptr()
        change(tensor)
        assert tensor.data_ptr() == address
        with pytest.raises(tp.StaleGraph, match=f"{name} {CHANGES[change]}"):
            for _ in range(20 if grad else 320):
                module(x)


def test_a_form_of_its_own_is_followed_by_a_capture_anew(device):
    x = torch.rand(3, 4, device=device)
    module = nn.Linear(4, 4, bias=False, device=device)
    tp.make_graphed_callables(module, (x,), on_change="recapture")
    turned(module.weight)
    for _ in range(20):
        result = module(x)
    torch.testing.assert_close(result, x @ module.weight.T)


def test_writes_in_place_change_no_form(device):
    module, x = Layer().to(device), torch.rand(3, 4, device=device)
    tp.make_graphed_callables(module, (x,))
    for _ in range(40):
        with torch.no_grad():
            module.inner.weight.copy_(torch.rand(4, 4).t())
        module(x)
    assert module.forward.counts.replayed == 40
