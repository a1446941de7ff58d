"""Random numbers in graphs on a GPU: the reference's, going on from replay to replay."""

from __future__ import annotations

import cupy as cp
import numpy
import pytest

import tensorplay_cupy as tp
from tensorplay_cupy import philox
from tensorplay_cupy.random import Generator

pytestmark = pytest.mark.gpu

SEED, STREAM = 0x123456789ABCDEF0, 0xFEDCBA9876543210


@pytest.mark.parametrize("size", [1, 3, 1000, 5_000_001])
@pytest.mark.parametrize("dtype", ["f", "d"])
def test_uniform_numbers_are_the_references(size, dtype):
    made = Generator(SEED, stream=STREAM, counter=2**64 - 5)
    expected = philox.uniform(SEED, STREAM, 2**64 - 5, size, dtype)
    numpy.testing.assert_array_equal(made.random(size, dtype).get(), expected)
    each = 4 if dtype == "f" else 2
    assert made.counter == (2**64 - 5 + -(-size // each)) % 2**64


def test_integers_are_the_references():
    for low, high in ((-3, 4), (0, 2**40), (-(2**63), 2**63 - 1)):
        drawn = Generator(SEED, stream=1).integers(low, high, (7, 11)).get()
        expected = philox.integers(SEED, 1, 0, 77, low, high - low).reshape(7, 11)
        numpy.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("dtype", ["f", "d"])
def test_normal_numbers_are_normal(dtype):
    drawn = Generator(7).standard_normal(1_000_000, dtype).get()
    assert drawn.dtype == numpy.dtype(dtype)
    assert numpy.isfinite(drawn).all()
    assert abs(drawn.mean()) < 0.005
    assert abs(drawn.std() - 1) < 0.005
    assert abs((drawn**3).mean()) < 0.02
    assert abs((drawn**4).mean() - 3) < 0.05


def test_a_replay_goes_on_where_eager_work_would():
    made, twin = Generator(SEED), Generator(SEED)
    with tp.graph(tp.CUDAGraph()) as g:
        x = made.random((3, 5), "f")
        y = made.standard_normal(7)
    assert made.counter == 0
    for _ in range(5):
        g.replay()
        numpy.testing.assert_array_equal(x.get(), twin.random((3, 5), "f").get())
        numpy.testing.assert_array_equal(y.get(), twin.standard_normal(7).get())
    assert made.counter == twin.counter


def test_a_loop_of_the_device_draws_anew_at_each_turn():
    made, twin = Generator(SEED), Generator(SEED)
    total, count, flag = cp.zeros(64), cp.zeros(1, dtype="i"), cp.ones(1, dtype="?")
    total += made.random(64)
    count += 1
    cp.less(count, numpy.int32(10), out=flag)
    made.counter, total[...], count[...], flag[...] = 0, 0, 0, True
    with tp.graph(tp.CUDAGraph()) as g, g.while_loop(flag):
        total += made.random(64)
        count += 1
        cp.less(count, numpy.int32(10), out=flag)
    g.replay()
    expected = cp.zeros(64)
    for _ in range(10):
        expected += twin.random(64)
    numpy.testing.assert_array_equal(total.get(), expected.get())
    assert made.counter == twin.counter


def test_draws_go_into_a_given_array():
    out = cp.empty((2, 3), dtype="f")
    assert Generator(1).random((2, 3), "f", out=out) is out
    with pytest.raises(tp.ArgumentError):
        Generator(1).random((3, 2), "f", out=out)
    with pytest.raises(tp.ArgumentTypeError):
        Generator(1).random(3, "i")
    with pytest.raises(tp.ArgumentError):
        Generator(1).integers(3, 3, 1)
