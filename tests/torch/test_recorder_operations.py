"""Operations on the CPU whose results' shapes are not what their meta kernels say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tensorplay_torch as tp


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


BY_DEFAULT = {
    "draws": lambda x: torch.rand(5, device=x.device),
    "normal draws": lambda x: torch.randn(20, device=x.device),
    "integers divided": lambda x: x / 3,
    "a root of integers": lambda x: x.sqrt() * 1.1,
    "a range": lambda x: torch.arange(0, 1, 0.1, device=x.device) + x[0],
    "points on a line": lambda x: torch.linspace(0, 1, 7, device=x.device) * x[1],
    "a number to fill with": lambda x: torch.full((2,), 0.1, device=x.device) + x[0],
    "set inside": lambda x: inside(x),
}


def inside(x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        third = x / 3
    finally:
        torch.set_default_dtype(torch.float32)
    return third.float() + x / 3


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_the_default_dtype_is_that_of_the_capture(device: str, name: str) -> None:
    work, x = BY_DEFAULT[name], torch.arange(1, 8, device=device)
    made = tp.CUDAGraph(device=device)
    with tp.graph(made):
        result = work(x)
    torch.manual_seed(3)
    expected = work(x)
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(3)
        made.replay()
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(result, expected)
