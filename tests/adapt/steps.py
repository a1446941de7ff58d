"""The smallest step: one linear layer, by SGD."""

from __future__ import annotations

import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep

mse = nn.functional.mse_loss


def linear(device, seed=0, **options):
    torch.manual_seed(seed)
    model = nn.Linear(4, 2).to(device)
    return model, optim.SGD(model.parameters(), lr=0.1, **options)


def captured(device, **options):
    model, optimizer = linear(device)
    x, y = torch.randn(3, 4, device=device), torch.randn(3, 2, device=device)
    step = CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device, **options)
    return step, x, y
