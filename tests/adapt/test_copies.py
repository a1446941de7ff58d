"""A step is bound to its model and optimizer: copies are refused by name."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import ArgumentTypeError


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_and_pickles_are_refused_and_the_step_goes_on(device, way):
    model = nn.Linear(4, 2).to(device)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    step = CudaGraphAdaptationStep.capture(
        model, optim.SGD(model.parameters(), lr=0.1), x, y, nn.functional.mse_loss, device=device
    )
    with pytest.raises(ArgumentTypeError, match="state_dict"):
        way(step)
    assert step(x, y).isfinite()
