"""CuPy graphs on a GPU: replays, streams, staged inputs, callbacks, threads."""

from __future__ import annotations

import gc
import threading

import cupy as cp
import numpy
import pytest

import tensorplay_cupy as tp

pytestmark = pytest.mark.gpu


def test_a_replay_equals_eager_bit_for_bit(work):
    x = cp.linspace(0, 5, 1 << 14, dtype="f")
    work(x)
    with tp.graph(tp.CUDAGraph()) as g:
        y = work(x)
    for seed in range(5):
        x[...] = cp.asarray(numpy.random.default_rng(seed).random(x.shape, dtype="f") * 5)
        g.replay()
        assert (y == work(x)).all()


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


def test_results_of_two_captures_of_one_name_are_each_their_own():
    x, made = cp.ones(8, dtype="f"), []
    x * numpy.float32(2)
    for factor in (2, 3):
        with tp.graph(tp.CUDAGraph()) as g:
            y = x * numpy.float32(factor)
        made.append((g, y))
    for (g, y), factor in zip(made, (2, 3), strict=True):
        g.replay()
        assert (y == factor).all()


def test_a_replay_follows_cupys_current_stream():
    x, stream = cp.zeros(1 << 20, dtype="f"), cp.cuda.Stream(non_blocking=True)
    x += 1
    x.fill(0)
    with tp.graph(tp.CUDAGraph()) as g:
        x += 1
    with stream:
        for _ in range(20):
            g.replay()
            x *= 1.0
    g.replay(stream)
    stream.synchronize()
    assert (x == 21).all()
