"""What a warm-up changes is saved before, and put back."""

from __future__ import annotations

import contextlib

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_torch.resources.storages import key_of
from tensorplay_torch.tracking.dispatch import CaptureDispatch
from tensorplay_torch.tracking.preservation import Preservation


def test_what_was_written_counts_writes_together_with_the_tensor():
    scale, x = torch.ones(4), torch.rand(4)
    preservation = Preservation(torch.device("cpu"), [])
    dispatch = CaptureDispatch([preservation])
    dispatch.start()
    try:
        scale.lerp_(x, 0.5)
    finally:
        dispatch.stop()
    preservation.restore()
    assert torch.equal(scale, torch.ones(4))
    assert scale._version == 0
    torch.autograd.graph.increment_version([preservation.written[key_of(scale)].detach()])
    assert scale._version == 1


@pytest.mark.gpu
@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_counts_no_write_for_good(foreach, fails):
    """CUDA's foreach kernels count by themselves, before the operation returns."""
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    weight.grad = torch.ones(4, device="cuda")
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=foreach)
    optimizer.step()
    before, made = weight._version, tp.CUDAGraph()
    expected = pytest.raises(KeyError) if fails else contextlib.nullcontext()
    with expected, tp.graph(made):
        optimizer.step()
        if fails:
            raise KeyError
    assert weight._version == before
