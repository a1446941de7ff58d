"""Batches of which no step can be captured, or taken, get a typed error."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import ArgumentError, SignatureMismatch

BAD = {
    "None": lambda x: None,
    "a generator": lambda x: (one for one in [x]),
    "a map": lambda x: map(torch.abs, [x]),
    "an array": lambda x: x.numpy(),
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.to_sparse_csr(),
    "meta": lambda x: x.to("meta"),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "an object": lambda x: object(),
}


def capture(x, y):
    model = nn.Linear(8, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    return CudaGraphAdaptationStep.capture(
        model, optimizer, x, y, nn.functional.mse_loss, device="cpu"
    )


@pytest.mark.filterwarnings("ignore::UserWarning")  # Of torch, on sparse and nested tensors.
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", BAD)
def test_bad_batches(kind, place):
    batch = [torch.randn(6, 8), torch.randn(6, 4)]
    step = capture(*batch)
    before = step.module.weight.detach().clone()
    good = list(batch)
    batch[place] = BAD[kind](batch[place])
    with pytest.raises(SignatureMismatch):
        step(*batch)
    with pytest.raises(SignatureMismatch):
        step.until(*batch, tolerance=0.1, max_steps=2)
    assert torch.equal(step.module.weight, before)
    step(*good)
    batch[place] = BAD[kind](good[place])
    if kind != "None":  # Which a module or a loss may well take.
        with pytest.raises(ArgumentError):
            capture(*batch)
