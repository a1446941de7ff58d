"""The torch driver on a GPU: whose memory is whose, and that it comes back."""

from __future__ import annotations

import pytest
import torch

import tensorplay_torch as tp

from .cuda_captures import held, record

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("clean")]


def warm_up_products():
    """What torch makes once a thread, for matrix products, cannot be made inside a capture."""
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")


def test_memory_is_back_after_every_end():
    x = torch.randn(512, 512, device="cuda")
    warm_up_products()
    record(lambda: torch.relu(x @ x))[0].close()
    before = held()
    for _ in range(3):
        g, y = record(lambda: torch.relu(x @ x) @ x)
        g.replay()
        g.close()
        del g, y
    # cuBLAS keeps one workspace a stream, and streams are used again.
    assert held() <= before
    torch.cuda.empty_cache()


def test_a_hundred_captures_of_products_do_not_grow():
    x = torch.randn(256, 256, device="cuda")
    warm_up_products()
    for _ in range(3):
        record(lambda: x @ x)[0].close()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    for _ in range(100):
        record(lambda: x @ x)[0].close()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved + (64 << 20)


def test_operands_live_as_long_as_the_graph():
    total = torch.zeros(1 << 16, device="cuda")
    operands = [torch.full((1 << 16,), 3.0, device="cuda")]
    g, _ = record(lambda: total.add_(operands[0]))
    operands.clear()
    junk = [torch.full((1 << 16,), 9.0, device="cuda") for _ in range(64)]
    g.replay()
    assert total.eq(3).all()
    before = held()
    g.close()
    del g
    assert held() < before
    assert len(junk) == 64


def test_a_tensor_outlives_its_graph_and_its_pool_serves_again():
    x, pool = torch.ones(1 << 16, device="cuda"), tp.graph_pool_handle()
    g, y = record(lambda: x * 2, pool=pool)
    g.replay()
    g.close()
    again, z = record(lambda: x * 3, pool=pool)
    again.replay()
    assert y.eq(2).all()
    assert z.eq(3).all()


@pytest.mark.parametrize("kind", ["MemPool", "handle", "CUDAGraph"])
def test_pools_of_torchs_own_are_taken(kind):
    x = torch.ones(1 << 16, device="cuda")
    theirs = torch.cuda.CUDAGraph()
    with torch.cuda.graph(theirs):
        z = x * 5
    pool = {
        "MemPool": torch.cuda.MemPool,
        "handle": torch.cuda.graph_pool_handle,
        "CUDAGraph": lambda: theirs,
    }[kind]()
    g, y = record(lambda: x * 2, pool=pool)
    assert g.memory.allocated_bytes >= y.nbytes
    theirs.replay()
    g.replay()
    assert y.eq(2).all()
    assert z.eq(5).all()
    g.close()


def test_statistics_count_bodies_too():
    x, flag, g = (
        torch.ones(1 << 20, device="cuda"),
        torch.tensor(True, device="cuda"),
        tp.CUDAGraph(),
    )
    with tp.graph(g), g.if_then(flag):
        y = x * 2
    assert g.memory.allocated_bytes >= y.nbytes
    g.close()
