"""Pools of the torch driver on the CPU: named, shared, accounted for. See also the suite."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_torch.resources import arena
from tensorplay_torch.resources.memory import Segments, is_idle, read_statistics, segments_of
from tensorplay_torch.resources.pools import TorchPool

GPU = torch.device("cuda", 0)


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


class Visit:
    """What a recorded operation does once, at a replay."""

    act = None


@torch.library.custom_op("pools::visited", mutates_args=())
def visited(x: torch.Tensor) -> torch.Tensor:
    act, Visit.act = Visit.act, None
    if act is not None:
        act()
    return x + 1


@visited.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def in_a_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("form", ["replay", "plan"])
@pytest.mark.parametrize("inference", [False, True])
def test_a_capture_into_the_pool_of_a_graph_that_runs_waits_for_it(form, inference):
    x, g, h = torch.ones(1024), tp.CUDAGraph(device="cpu"), tp.CUDAGraph(device="cpu")
    with tp.graph(g):
        y = visited(x * 2) * 1
    g.replay()
    plan = g.stage([x], results=[y])
    captured = threading.Event()

    def capture():
        with (
            torch.inference_mode(inference),
            tp.graph(h, pool=g, capture_error_mode="thread_local"),
        ):
            z.append(x * 4)
        captured.set()

    def act():
        threads.append(in_a_thread(capture))
        assert not captured.wait(0.2)

    z, threads = [], []
    Visit.act = act
    if form == "replay":
        g.replay()
        assert y.unique().tolist() == [3.0]
    else:
        (result,) = plan([torch.ones(1024)])
        assert result.unique().tolist() == [3.0]
    threads[0].join(60)
    h.replay()
    assert z[0].unique().tolist() == [4.0]


def test_a_capture_into_a_pool_in_the_midst_of_that_pools_replay_waits_for_nobody(monkeypatch):
    """A finaliser that ends a graph runs while memory is poisoned; its replay waits for that."""
    x, both, g = torch.ones(1024), threading.Barrier(2), tp.CUDAGraph(device="cpu")
    with tp.graph(g):
        y = (x * 2) * 1
    q = tp.CUDAGraph(device="cpu")
    with tp.graph(q):
        visited(x)

    def inside():
        both.wait(60)
        g.replay()

    def poisoned(tensor):
        monkeypatch.setattr(arena, "poison", poison)
        both.wait(60)
        time.sleep(0.1)  # By now the replay in the other thread waits.
        q.close()
        poison(tensor)

    poison = arena.poison
    monkeypatch.setattr(arena, "poison", poisoned)
    Visit.act = inside

    def capture():
        with tp.graph(tp.CUDAGraph(device="cpu"), pool=g, capture_error_mode="thread_local"):
            x * 4

    for thread in [in_a_thread(q.replay), in_a_thread(capture)]:
        thread.join(60)
        assert not thread.is_alive(), "a capture and a replay wait for each other"
    assert y.unique().tolist() == [2.0]


@pytest.mark.parametrize("token", [(0, 1), (1, 0), ("cpu", 10**9), ("host", 1, 1), "cpu", 7])
def test_pools_of_others_are_refused(token):
    with pytest.raises(tp.PoolMismatch):
        tp.CUDAGraph(device="cpu").capture_begin(pool=token)


def test_a_pool_of_another_device_is_refused(monkeypatch):
    from tensorplay_torch.resources.pools import PoolRegistry

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
    from tensorplay_torch.resources.pools import PoolRegistry

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", iter([(0, 1), (0, 2), (0, 3)]).__next__)
    registry, gpu = PoolRegistry(), torch.device("cuda", 0)
    first = registry.create(gpu)
    assert first.id == first.native == (0, 1)
    first.used = True
    registry.forget(first)
    again = registry.resolve((0, 1), gpu)
    assert (again.id, again.native) == ((0, 1), (0, 2))


def test_an_id_that_nobody_used_stays_torchs_and_of_its_device(monkeypatch):
    from tensorplay_torch.resources.pools import PoolRegistry

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", iter([(0, 1), (0, 2)]).__next__)
    registry, gpu = PoolRegistry(), torch.device("cuda", 0)
    registry.forget(registry.create(gpu))
    with pytest.raises(tp.PoolMismatch):
        registry.resolve((0, 1), torch.device("cuda", 1))
    again = registry.resolve((0, 1), gpu)
    assert again.id == again.native == (0, 1)


def segment(native, device, *blocks):
    return {
        "segment_pool_id": native,
        "address": native[1] << 30,
        "device": device,
        "total_size": 2 << 20,
        "active_size": sum(size for size, state in blocks if state != "inactive"),
        "allocated_size": sum(size for size, state in blocks if state == "active_allocated"),
        "blocks": [{"size": size, "state": state} for size, state in blocks],
    }


HELD = [
    segment((0, 1), 0, (512, "active_allocated"), (1024, "inactive")),
    segment((0, 1), 1, (4096, "active_allocated")),  # Another device may use the same id.
    segment((0, 2), 0, (2048, "active_allocated"), (2048, "active_allocated")),
    segment((0, 3), 0, (2048, "inactive")),
    segment((0, 4), 0, (2048, "active_pending_free")),
    segment((0, 0), 0, (8192, "active_allocated")),
]


@pytest.fixture
def held(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "memory_snapshot",
        lambda native, **_: [one for one in HELD if one["segment_pool_id"] == native],
    )


@pytest.mark.usefixtures("held")
def test_statistics_on_a_gpu_count_the_pool_and_its_bodies_once():
    pool = TorchPool((0, 1), GPU, (0, 1))
    assert read_statistics(pool) == (0, 0, 0, 0)  # torch has not heard of it.
    pool.begin(object())
    assert read_statistics(pool) == (2 << 20, 512, 512, 1)
    pool.bodies[0, 2] += 2
    assert read_statistics(pool) == (4 << 20, 4608, 4608, 3)
    pool.bodies[0, 1] += 1
    assert read_statistics(pool) == (4 << 20, 4608, 4608, 3)


@pytest.mark.usefixtures("held")
def test_addresses_of_a_pool_are_its_own():
    pool = TorchPool((0, 1), GPU, (0, 1))
    pool.begin(object())
    own = Segments(pool, [(0, 2)])
    for start in (1 << 30, 2 << 30):
        assert start in own
        assert start + (2 << 20) - 1 in own
        assert start - 1 not in own
        assert start + (2 << 20) not in own
    assert 3 << 30 not in own
    assert "1" not in own


@pytest.mark.usefixtures("held")
def test_a_pool_is_idle_if_nothing_in_it_is_alive_or_waited_for():
    assert is_idle((0, 3), GPU, most=2 << 20)
    assert not is_idle((0, 3), GPU, most=1 << 20)
    assert not is_idle((0, 1), GPU, most=2 << 20)
    assert not is_idle((0, 4), GPU, most=2 << 20)


@pytest.mark.parametrize("stolen", [0, 1, 2])
def test_torch_may_drop_references_to_the_numbers_it_is_asked_with(monkeypatch, stolen):
    """As it does up to 2.14: nothing that anybody else holds is ever one of them."""
    native, asked = (0, 123_456_789), []

    def snapshot(id, **_):
        asked.append(repr(id))
        for _ in range(stolen):
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(id[1]))
        return []

    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    before = sys.getrefcount(native[1])
    for _ in range(50):
        assert segments_of(native, GPU) == []
    after = sys.getrefcount(native[1])
    assert after == before
    assert asked == [repr(native)] * 50
    # The numbers lent are gone again: their memory is that of the next ones.
    blocks = sys.getallocatedblocks()
    asked.clear()
    for _ in range(50):
        segments_of(native, GPU)
        asked.clear()
    assert sys.getallocatedblocks() < blocks + 40


def test_a_route_into_the_pool_of_another_is_given_back_with_the_capture(monkeypatch):
    from collections import Counter

    from tensorplay_torch import _private
    from tensorplay_torch.resources import pools, routing

    gpu, uses = torch.device("cuda", 0), Counter()
    for name, change in {
        "begin_allocate_stream": lambda index, native: uses.update([native]),
        "end_allocate": lambda index, native: None,
        "release_pool": lambda index, native: uses.subtract([native]),
    }.items():
        monkeypatch.setitem(_private.PRIVATE, name, _private.Private(change, "nothing"))
    other, begun = pools.TorchPool((0, 2), gpu, (0, 2)), Counter()
    for _ in range(3):
        with routing.routed(other, (0, 2), begun):
            pass
    assert uses == {(0, 2): 3}
    assert not other.bodies
    routing.release_bodies(pools.TorchPool((0, 1), gpu, (0, 1)), begun)
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
