"""What cannot be captured on a GPU is refused by name, and all is as it was before."""

from __future__ import annotations

import gc

import cupy as cp
import numpy
import pytest

import tensorplay_cupy as tp

pytestmark = pytest.mark.gpu


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


def test_an_fft_takes_its_plan_and_its_work_space(storm):
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


def test_a_swallowed_refusal_is_not_forgotten():
    x = cp.ones(8, dtype="f")
    x += 1
    with pytest.raises(tp.CaptureError), tp.graph(tp.CUDAGraph()):
        x += 1
        try:
            cp.cuda.Device().synchronize()
        except RuntimeError:
            x += 1
    x.fill(2)
    x + 1
    with tp.graph(tp.CUDAGraph()) as g:
        y = x + 1
    g.replay()
    assert (y == 3).all()


def test_a_capture_on_the_default_stream_is_refused_by_name():
    for stream in (cp.cuda.Stream.null, 0):
        with (
            pytest.raises(tp.CaptureError, match="legacy"),
            tp.graph(tp.CUDAGraph(), stream=stream),
        ):
            pytest.fail("the block was entered")


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
