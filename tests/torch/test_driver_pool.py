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


def segment(native, device, *blocks):
    return {
        "segment_pool_id": native,
        "device": device,
        "total_size": 2 << 20,
        "allocated_size": sum(size for size, state in blocks if state == "active_allocated"),
        "blocks": [{"size": size, "state": state} for size, state in blocks],
    }


def test_statistics_on_a_gpu_count_the_pool_and_its_bodies_once(monkeypatch):
    from tensorplay_torch.pools import TorchPool, read_statistics

    gpu = torch.device("cuda", 0)
    held = [
        segment((0, 1), 0, (512, "active_allocated"), (1024, "inactive")),
        segment((0, 1), 1, (4096, "active_allocated")),  # Another device may use the same id.
        segment((0, 2), 0, (2048, "active_allocated"), (2048, "active_allocated")),
        segment((0, 0), 0, (8192, "active_allocated")),
    ]
    asked = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda **which: asked.append(which) or held)
    pool = TorchPool((0, 1), gpu, (0, 1))
    assert read_statistics(pool) == (2 << 20, 512, 512, 1)
    pool.bodies[0, 2] += 2
    assert read_statistics(pool) == (4 << 20, 4608, 4608, 3)
    pool.bodies[pool.native] += 1
    assert read_statistics(pool) == (4 << 20, 4608, 4608, 3)
    # Never for one pool: torch drops references to the numbers of its id, and then they are gone.
    assert not any("mempool_id" in which for which in asked)


def test_a_route_into_the_pool_of_another_is_given_back_with_the_capture(monkeypatch):
    from collections import Counter

    from tensorplay_torch import _private, pools

    gpu, uses = torch.device("cuda", 0), Counter()
    for name, change in {
        "begin_allocate_stream": lambda index, native: uses.update([native]),
        "end_allocate": lambda index, native: None,
        "release_pool": lambda index, native: uses.subtract([native]),
    }.items():
        monkeypatch.setitem(_private.PRIVATE, name, _private.Private(change, "nothing"))
    other, begun = pools.TorchPool((0, 2), gpu, (0, 2)), Counter()
    for _ in range(3):
        with pools.routed(other, (0, 2), begun):
            pass
    assert uses == {(0, 2): 3}
    assert not other.bodies
    pools.release_bodies(pools.TorchPool((0, 1), gpu, (0, 1)), begun)
    assert not +uses
    assert not begun


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
