"""Graphs that watch their inputs, and what they say once one is gone."""

from __future__ import annotations

import pytest
import torch

import tensorplay_torch as tp


def watched(function, device, **options):
    made = tp.CUDAGraph(device=device)
    with torch.no_grad(), tp.graph(made, check_input_liveness=True, **options):
        result = function()
    return made, result


def stale(made) -> str:
    with pytest.raises(tp.StaleGraph) as caught:
        made.replay()
    return str(caught.value)
