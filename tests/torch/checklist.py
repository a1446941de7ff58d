"""Captures and warm-ups, for the tests of what torch's own tests of CUDA graphs ask."""

from __future__ import annotations

import pytest
import torch

import tensorplay_torch as tp

gpu = pytest.mark.gpu


def captured(function, device, **options):
    """The graph of a function and what that returned."""
    made = tp.CUDAGraph(device=device)
    with tp.graph(made, **options):
        result = function()
    return made, result


def aside(function):
    """Runs a function on a side stream, as a warm-up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = function()
    torch.cuda.current_stream().wait_stream(side)
    return result
