"""CuPy graphs on a GPU: what one owns, what eager code cannot touch, what is refused by name."""

from __future__ import annotations

import gc
import threading

import cupy as cp
import numpy
import pytest

import tensorplay_cupy as tp

pytestmark = pytest.mark.gpu


def storm(shape=(1 << 14,), count=64, value=-7.0):
    """Eager allocation of the sizes that graphs use, filled with another value."""
    made = [cp.full(shape, value, dtype="f") for _ in range(count)]
    cp.get_default_memory_pool().free_all_blocks()
    made += [cp.full(shape, value, dtype="f") for _ in range(count)]
    cp.cuda.Device().synchronize()


def work(x):
    return cp.sqrt(x * 2 + 1) + x.sum() - cp.where(x > 2, x, -x)


def test_a_replay_equals_eager_bit_for_bit():
    x = cp.linspace(0, 5, 1 << 14, dtype="f")
    work(x)
    with tp.graph(tp.CUDAGraph()) as g:
        y = work(x)
    for seed in range(5):
        x[...] = cp.asarray(numpy.random.default_rng(seed).random(x.shape, dtype="f") * 5)
        g.replay()
        assert (y == work(x)).all()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_memory_is_there_in_every_mode_without_a_warm_pool(mode):
    x = cp.arange(1 << 14, dtype="f")
    work(x)
    with tp.graph(tp.CUDAGraph(), capture_error_mode=mode) as g:
        y = work(x)
    g.replay()
    assert (y == work(x)).all()
    assert g.memory.reserved_bytes > 0


def test_eager_allocation_cannot_touch_a_graphs_memory():
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


def test_a_graph_owns_its_operands():
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


def test_pools_are_given_back():
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


def test_forked_streams_are_captured_and_joined():
    x = cp.ones(1 << 16, dtype="f")
    side = cp.cuda.Stream(non_blocking=True)
    (x * 2) + (x + 1)
    with tp.graph(tp.CUDAGraph()) as g:
        main = cp.cuda.get_current_stream()
        side.wait_event(main.record())
        with side:
            left = x * 2
        right = x + 1
        main.wait_event(side.record())
        y = left + right
    x.fill(5)
    g.replay()
    assert (y == 16).all()


def test_a_fork_that_is_not_joined_is_refused():
    x, side = cp.ones(8, dtype="f"), cp.cuda.Stream(non_blocking=True)
    x + 1
    with pytest.raises(tp.UnjoinedWork), tp.graph(tp.CUDAGraph()):
        side.wait_event(cp.cuda.get_current_stream().record())
        with side:
            x + 1
    with tp.graph(tp.CUDAGraph()) as g:
        y = x + 1
    g.replay()
    assert (y == 2).all()


def test_inputs_are_staged_with_conversion():
    x = cp.zeros((4, 8), dtype="f")
    x * 2
    with tp.graph(tp.CUDAGraph()) as g:
        y = x * 2
    for given in (
        cp.full((4, 8), 3, dtype="f"),
        cp.full((4, 8), 3, dtype="d"),
        cp.full((8, 4), 3, dtype="f").T,
        numpy.full((4, 8), 3, dtype="i"),
    ):
        x.fill(0)
        g.stage_and_launch([x], [given])
        assert (y == 6).all()
    with pytest.raises(tp.SignatureMismatch):
        g.stage_and_launch([x], [cp.zeros((8, 4), dtype="f")])


def test_a_staged_input_may_be_dropped_at_once():
    x, total = cp.zeros(1 << 20, dtype="f"), cp.zeros(1 << 20, dtype="f")
    total += x
    with tp.graph(tp.CUDAGraph()) as g:
        total += x
    stream = cp.cuda.Stream(non_blocking=True)
    for step in range(50):
        given = cp.full(1 << 20, step, dtype="f")
        cp.cuda.Device().synchronize()
        g.stage_and_launch([x], [given], stream=stream)
        del given
        cp.full(1 << 20, -7, dtype="f")
    stream.synchronize()
    assert (total == sum(range(50))).all()


def test_host_callbacks_are_kept_and_called_at_each_replay():
    x, called = cp.zeros(8, dtype="f"), []
    x += 1
    side = cp.cuda.Stream(non_blocking=True)
    with tp.graph(tp.CUDAGraph()) as g:
        x += 1
        cp.cuda.get_current_stream().launch_host_func(lambda word: called.append(word), "cupy's")
        tp.host_callback(called.append, "ours")
        side.wait_event(cp.cuda.get_current_stream().record())
        with side:
            tp.host_callback(lambda *words: called.extend(words), "forked", "too")
        cp.cuda.get_current_stream().wait_event(side.record())
    gc.collect()
    assert not called
    for _ in range(3):
        g.replay()
    cp.cuda.Device().synchronize()
    assert called == ["cupy's", "ours", "forked", "too"] * 3
    tp.host_callback(called.append, "eager")
    cp.cuda.Device().synchronize()
    assert called[-1] == "eager"


def test_captures_of_another_thread_do_not_meet():
    x = cp.ones(1 << 14, dtype="f")
    x * numpy.float32(1)
    made, failed, barrier = {}, [], threading.Barrier(3)

    def capture(place):
        try:
            barrier.wait()
            with tp.graph(tp.CUDAGraph(), capture_error_mode="thread_local") as g:
                y = x * numpy.float32(place + 1)
            made[place] = g, y
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=capture, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for place, (g, y) in made.items():
        g.replay()
        assert (y == place + 1).all()


REFUSED = {
    "reading": (lambda x: x.get(), "cupy.ndarray.get"),
    "a truth value": (lambda x: bool(x[0]), "cupy.ndarray"),
    "one-armed where": (lambda x: cp.where(x), "cupy"),
    "a boolean mask": (lambda x: x[x > 1], "cupy"),
    "an array of the host": (lambda x: cp.array([1.0, 2.0]), "cupy"),
    "matmul": (lambda x: x.reshape(4, 4) @ x.reshape(4, 4), "cuBLAS"),
    "random numbers": (lambda x: cp.random.random(4), "cupy"),
    "waiting": (lambda x: cp.cuda.get_current_stream().synchronize(), "CUDA"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cupy_refuses_is_named_with_its_place(kind):
    x = cp.arange(16, dtype="f")
    call, name = REFUSED[kind]
    x += 1
    x -= 1
    x + 1
    call(x)
    with pytest.raises(tp.OperationRefused) as caught, tp.graph(tp.CUDAGraph()):
        x += 1
        call(x)
    assert name in caught.value.operation
    assert __file__ in caught.value.where
    assert caught.value.remedy
    assert caught.value.__cause__ is not None
    with tp.graph(tp.CUDAGraph()) as g:
        y = x + 1
    g.replay()
    assert (y == cp.arange(1, 17)).all()


def test_an_fft_takes_its_plan_and_its_work_space():
    x = cp.asarray(numpy.random.default_rng(0).random((8, 300)) + 0j)
    cache = cp.fft.config.get_plan_cache()
    cache.clear()
    with pytest.raises(tp.OperationRefused, match="cuFFT"), tp.graph(tp.CUDAGraph()):
        cp.fft.fft(x)
    cp.fft.fft(x), cp.fft.fft2(x)
    with tp.graph(tp.CUDAGraph()) as first:
        y, z = cp.fft.fft(x), cp.fft.fft2(x)
    with tp.graph(tp.CUDAGraph()) as second:
        again = cp.fft.fft(x)
    assert cache.get_curr_size() == 2
    cache.clear()
    for _ in range(5):
        storm((1 << 16,))
        cp.fft.fft(x * 3), cp.fft.fft2(x * 3)
        for g in (first, second):
            g.replay()
        cp.testing.assert_array_equal(y, cp.fft.fft(x))
        cp.testing.assert_array_equal(again, cp.fft.fft(x))
        cp.testing.assert_array_equal(z, cp.fft.fft2(x))


def test_a_prime_fft_in_a_capture_is_refused_and_does_not_end_the_process():
    cp.fft.config.get_plan_cache().clear()
    x = cp.ones(131)
    with pytest.raises(tp.OperationRefused), tp.graph(tp.CUDAGraph()):
        cp.fft.fft(x)


def test_an_array_born_in_a_capture_outlives_its_graph():
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


def test_the_surroundings_are_as_they_were_however_it_ends():
    x = cp.ones(8, dtype="f")
    x + 1

    def around():
        return (
            cp.cuda.get_current_stream(),
            cp.cuda.get_allocator(),
            cp.cuda.runtime.getDevice(),
            gc.isenabled(),
        )

    before = around()
    with tp.graph(tp.CUDAGraph()):
        x + 1
    assert around() == before
    with pytest.raises(KeyError), tp.graph(tp.CUDAGraph()):
        x + 1
        raise KeyError
    assert around() == before


@pytest.mark.slow
def test_ten_thousand_captures_leave_nothing_behind():
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
