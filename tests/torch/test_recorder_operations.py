"""Operations on the CPU whose results' shapes are not what their meta kernels say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("trains", [False, True], ids=["frozen", "trained"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("bags", ["offsets", "with the last", "rows"])
def test_bags_of_embeddings(record, mode, bags, trains):
    weight = torch.randn(10, 3, requires_grad=trains)
    rows, last = bags == "rows", bags == "with the last"
    indices = torch.arange(6).view(2, 3) if rows else torch.arange(6)
    offsets = None if rows else torch.tensor([0, 2, 6] if last else [0, 2, 2])

    def body():
        return F.embedding_bag(
            indices, weight, offsets, mode=mode, padding_idx=2, include_last_offset=last
        )

    captured = record(body)
    for place in (1, 3, 5):
        indices.copy_((indices * 7 + place) % 10)
        if offsets is not None:
            offsets[1] = place
            offsets[2] = max(place, int(offsets[2]))
        captured.replay()
        assert torch.equal(captured.result, body())
