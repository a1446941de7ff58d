"""Pools of the torch driver on the CPU: named, shared, accounted for. See also the suite."""

from __future__ import annotations

import gc

import pytest
import torch

import tensorplay_torch as tp


def captured(work, **options):
    g = tp.CUDAGraph(device="cpu")
    with tp.graph(g, **options):
        work()
    return g


def test_graphs_share_a_pool_by_id_and_by_graph():
    x, pool = torch.ones(1024), tp.graph_pool_handle("cpu")
    first = captured(lambda: x * 2, pool=pool)
    second = captured(lambda: x * 3, pool=first)
    third = captured(lambda: x * 4, pool=first.pool_id)
    assert first.pool_id == second.pool_id == third.pool_id == pool


def test_an_id_lives_on_after_its_graphs():
    x, pool = torch.ones(4), tp.graph_pool_handle("cpu")
    for _ in range(3):
        g = tp.CUDAGraph(device="cpu")
        with tp.graph(g, pool=pool):
            y = x + 1
        g.replay()
        assert y.tolist() == [2.0] * 4
        assert g.pool_id == pool
        g.close()


@pytest.mark.parametrize("token", [(0, 1), (1, 0), ("cpu", 10**9), ("host", 1, 1), "cpu", 7])
def test_pools_of_others_are_refused(token):
    with pytest.raises(tp.PoolMismatch):
        tp.CUDAGraph(device="cpu").capture_begin(pool=token)


def test_a_pool_of_another_device_is_refused(monkeypatch):
    from tensorplay_torch.pools import PoolRegistry

    registry, cpu, gpu = PoolRegistry(), torch.device("cpu"), torch.device("cuda", 0)
    ours = registry.create(cpu)
    assert registry.resolve(ours, cpu) is ours
    with pytest.raises(tp.PoolMismatch, match="it is on cpu"):
        registry.resolve(ours, gpu)
    theirs = registry.resolve((0, 5), gpu)
    assert theirs.native == (0, 5)
    with pytest.raises(tp.PoolMismatch, match="it is on cuda:0"):
        registry.resolve((0, 5), torch.device("cuda", 1))


def test_a_spent_id_stands_for_new_memory_of_torchs(monkeypatch):
    from tensorplay_torch.pools import PoolRegistry

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", iter([(0, 1), (0, 2), (0, 3)]).__next__)
    registry, gpu = PoolRegistry(), torch.device("cuda", 0)
    first = registry.create(gpu)
    assert first.id == first.native == (0, 1)
    registry.forget(first)
    again = registry.resolve((0, 1), gpu)
    assert (again.id, again.native) == ((0, 1), (0, 2))


def test_statistics_tell_what_tensors_hold_from_what_graphs_do():
    x, g = torch.ones(1 << 14), tp.CUDAGraph(device="cpu")
    with tp.graph(g):
        kept = [x * 2, x * 3]
        (x * 4).sum()
    full = g.memory
    assert full.allocated_bytes == 2 * x.nbytes
    assert full.reserved_bytes > full.allocated_bytes
    kept.pop()
    gc.collect()
    assert g.memory.allocated_bytes == x.nbytes
    assert g.memory.peak_bytes == full.peak_bytes
    kept.clear()
    g.close()
