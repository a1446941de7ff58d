"""What a CuPy graph owns on a GPU, and that eager code cannot touch it."""

from __future__ import annotations

import gc

import cupy as cp
import numpy
import pytest

import tensorplay_cupy as tp

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_memory_is_there_in_every_mode_without_a_warm_pool(mode, work):
    x = cp.arange(1 << 14, dtype="f")
    work(x)
    with tp.graph(tp.CUDAGraph(), capture_error_mode=mode) as g:
        y = work(x)
    g.replay()
    assert (y == work(x)).all()
    assert g.memory.reserved_bytes > 0


def test_eager_allocation_cannot_touch_a_graphs_memory(storm, work):
    x = cp.arange(1 << 14, dtype="f")
    work(x)
    with tp.graph(tp.CUDAGraph()) as g:
        y = work(x)
    expected = work(x)
    stream = cp.cuda.Stream(non_blocking=True)
    for _ in range(10):
        storm()
        with stream:
            storm()
        g.replay(stream)
        stream.synchronize()
        assert (y == expected).all()


def test_a_graph_owns_its_operands(storm):
    x = cp.arange(1 << 14, dtype="f")
    expected = (x * 3 + 1).get()
    factor, one = cp.full((1 << 14,), 3, dtype="f"), cp.ones(1 << 14, dtype="f")
    y = x * factor
    y += one
    with tp.graph(tp.CUDAGraph()) as g:
        y = x * factor
        y += one
        del one
    del factor, x
    gc.collect()
    storm()
    g.replay()
    numpy.testing.assert_array_equal(y.get(), expected)


def test_what_a_graph_does_not_use_is_not_kept():
    pool = cp.get_default_memory_pool()
    x, other = cp.ones(1 << 14, dtype="f"), cp.ones(1 << 20, dtype="f")
    x + 1
    with tp.graph(tp.CUDAGraph()) as g:
        y = x + 1
    before = pool.used_bytes()
    del other
    gc.collect()
    assert pool.used_bytes() == before - (4 << 20)
    del x
    gc.collect()
    assert pool.used_bytes() == before - (4 << 20)
    g.close()
    gc.collect()
    assert pool.used_bytes() == before - (4 << 20) - (4 << 14)
    assert y is not None


def test_a_graph_that_checks_liveness_says_what_died():
    x = cp.ones(8, dtype="f")
    x + 1
    with tp.graph(tp.CUDAGraph(), check_input_liveness=True) as g:
        y = x + 1
    g.replay()
    assert (y == 2).all()
    del x
    gc.collect()
    with pytest.raises(tp.StaleGraph, match="shape \\(8,\\)"):
        g.replay()


def test_pools_are_given_back(work):
    from tensorplay_core.discovery import find_workbench

    x = cp.ones(1 << 18, dtype="f")
    driver = tp.CUDAGraph()._runtime.driver
    beneath = find_workbench("cuda")(driver.base.runtime, driver.base.runtime.resolve_device(0))
    before = beneath.live_bytes()
    with tp.graph(tp.CUDAGraph()) as g:
        y = work(x)
    assert beneath.live_bytes() > before
    g.close()
    del y
    assert beneath.live_bytes() == before


def test_memory_dropped_inside_a_capture_serves_again():
    x = cp.ones(1 << 20, dtype="f")
    x + 1
    with tp.graph(tp.CUDAGraph()) as g:
        y = x
        for _ in range(50):
            y = y + 1
    g.replay()
    assert (y == 51).all()
    assert g.memory.peak_bytes <= 3 * x.nbytes


def test_graphs_may_share_a_pool():
    x, pool = cp.ones(1 << 16, dtype="f"), tp.graph_pool_handle()
    made = []
    (x + 1) * 2
    for count in (1, 2, 3):
        with tp.graph(tp.CUDAGraph(), pool) as g:
            y = x + count
            for _ in range(count):
                y = y * 2
        made.append((g, y, (1 + count) * 2**count))
    for g, y, expected in made:
        g.replay()
        assert (y == expected).all()
    assert len({g.pool_id for g, *_ in made}) == 1


def test_an_array_born_in_a_capture_outlives_its_graph(storm):
    x = cp.ones(1 << 16, dtype="f")
    x + 1
    with tp.graph(tp.CUDAGraph()) as g:
        y = x + 1
    g.replay()
    g.close()
    del g
    gc.collect()
    storm()
    assert (y == 2).all()


def test_an_eager_out_of_memory_cannot_touch_a_graph(storm, work):
    x, pool = cp.arange(1 << 14, dtype="f"), cp.get_default_memory_pool()
    expected = work(x)
    with tp.graph(tp.CUDAGraph()) as g:
        y = work(x)
    pool.set_limit(size=pool.total_bytes() + (1 << 20))
    try:
        with pytest.raises(cp.cuda.memory.OutOfMemoryError):
            cp.zeros(1 << 30, dtype="f")  # CuPy frees all that it can before it gives up.
    finally:
        pool.set_limit(size=0)
    storm()
    g.replay()
    assert (y == expected).all()


def test_an_operand_outlives_the_pool_it_came_from(storm):
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        x = cp.arange(1 << 14, dtype="f")
    x + 1
    with tp.graph(tp.CUDAGraph()) as g:
        y = x + 1
    del x, pool
    gc.collect()
    storm()
    g.replay()
    assert (y == cp.arange(1, (1 << 14) + 1)).all()


def test_an_asynchronous_allocator_outside_does_not_reach_a_capture(storm, work):
    with cp.cuda.using_allocator(cp.cuda.malloc_async):
        x, once = cp.arange(1 << 14, dtype="f"), [cp.ones(1 << 14, dtype="f")]
        work(x) + once[0]
        cp.cuda.Device().synchronize()
        with tp.graph(tp.CUDAGraph()) as g:
            y = work(x) + once.pop()
        expected = work(x) + 1
    assert {node.kind for node in g.topology.walk()} <= {"kernel", "memset", "memcpy", "empty"}
    for _ in range(3):
        storm()
        g.replay()
        assert (y == expected).all()


@pytest.mark.slow
def test_ten_thousand_captures_leave_nothing_behind(work):
    from tensorplay_core.discovery import find_workbench

    x = cp.ones(1 << 10, dtype="f")
    work(x)
    driver = tp.CUDAGraph()._runtime.driver
    beneath = find_workbench("cuda")(driver.base.runtime, driver.base.runtime.resolve_device(0))

    def cycle():
        with tp.graph(tp.CUDAGraph(), track_operands=False) as g:
            y = work(x)
        g.replay()
        g.close()
        return y

    for _ in range(50):
        cycle()
    cp.cuda.Device().synchronize()
    free, held, used = cp.cuda.runtime.memGetInfo()[0], beneath.live_bytes(), len(gc.get_objects())
    for _ in range(10_000):
        cycle()
    cp.cuda.Device().synchronize()
    assert beneath.live_bytes() == held
    assert len(gc.get_objects()) < used + 500
    assert free - cp.cuda.runtime.memGetInfo()[0] < 16 << 20
