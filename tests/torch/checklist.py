"""Captures and warm-ups, for the tests of what torch's own tests of CUDA graphs ask."""

from __future__ import annotations

import pytest
import torch

import tensorplay_torch as tp
from tests.equality import assert_all_equal

from .twins import random_state

gpu = pytest.mark.gpu


def captured(function, device, **options):
    """The graph of a function and what that returned."""
    made = tp.CUDAGraph(device=device)
    with tp.graph(made, **options):
        result = function()
    return made, result


def attempted(function, device):
    """The graph of a function and what that returned, or, on CUDA, None: it is refused by name.

    What is refused draws nothing from the generators.
    """
    before = random_state(torch.device(device))
    try:
        return captured(function, device)
    except tp.CaptureError as refusal:
        assert device == "cuda"
        print(f"refused: {refusal}")
    assert_all_equal(random_state(torch.device(device)), before)
    return None


def aside(function):
    """Runs a function on a side stream, as a warm-up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = function()
    torch.cuda.current_stream().wait_stream(side)
    return result
