"""What a warm-up changes is saved before, and put back."""

from __future__ import annotations

import torch

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
