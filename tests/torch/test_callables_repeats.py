"""Callables that do other work in each call, whatever Python keeps the reason in, are refused."""

from __future__ import annotations

import itertools
import random
import time

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_torch.tracking.repeats import Repeats
from tests.equality import assert_all_equal

numpy = pytest.importorskip("numpy")


class Slots:
    __slots__ = ("n",)


class Doubled(torch.autograd.Function):
    """Counts its backwards, and multiplies by the count."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Doubled.calls += 1
        return gradient * Doubled.calls


def in_an_iterator():
    numbers = itertools.count(1)
    return lambda x: x * next(numbers)


def in_a_generator():
    numbers = (1 / n for n in range(1, 1000))
    return lambda x: x * next(numbers)


def in_slots():
    kept = Slots()
    kept.n = 0

    def f(x):
        kept.n += 1
        return x * kept.n

    return f


def in_an_array():
    kept = numpy.zeros(1)

    def f(x):
        kept[0] += 1
        return x * float(kept[0])

    return f


def in_an_attribute_of_the_function():
    def f(x):
        f.n += 1
        return x * f.n

    f.n = 0
    return f


def in_a_constant_tensor():
    numbers = itertools.count(1)
    return lambda x: x.cpu() * torch.tensor(float(next(numbers)))


def in_a_shape():
    numbers = itertools.count(1)
    return lambda x: x + torch.ones(next(numbers), 4, device=x.device).sum()


def in_a_branch():
    flips = itertools.cycle([True, False])
    return lambda x: x.sin() if next(flips) else x.cos()


def drawn_by_python():
    draws = random.Random(0)
    return lambda x: x * draws.random()


def drawn_by_numpy():
    draws = numpy.random.default_rng(0)
    return lambda x: x * float(draws.random())


def by_the_clock():
    return lambda x: x * time.perf_counter()


CHANGING = [
    in_an_iterator,
    in_a_generator,
    in_slots,
    in_an_attribute_of_the_function,
    in_a_shape,
    in_a_branch,
    drawn_by_python,
    drawn_by_numpy,
    by_the_clock,
]


@pytest.mark.parametrize("make", CHANGING, ids=lambda make: make.__name__)
def test_work_that_changes_from_call_to_call_is_refused(device, make):
    with pytest.raises(tp.OperationRefused, match=r"in one call|where the next runs") as met:
        tp.graphed(make())(torch.rand(4, device=device))
    assert "Python counts, draws or looks at the clock" in str(met.value)


def test_an_array_that_each_call_writes_is_refused_and_put_back(device):
    function = in_an_array()
    with pytest.raises(tp.OperationRefused, match="it sets kept in each call"):
        tp.graphed(function)(torch.rand(4, device=device))
    assert torch.equal(function(torch.ones(1)), torch.ones(1))


def test_small_tensors_of_numbers_are_compared():
    with pytest.raises(tp.OperationRefused, match=r"lift_fresh gets 2.0 in one call and 3.0"):
        tp.graphed(in_a_constant_tensor())(torch.rand(4))


def test_work_of_a_backward_is_compared(device):
    x = torch.rand(4, device=device, requires_grad=True)
    with pytest.raises(tp.OperationRefused, match="gets 2 in one call and 3 in the next"):
        tp.make_graphed_callables(Doubled.apply, (x,))


def test_what_the_first_call_alone_does_is_no_change(device):
    scales = []

    def f(x):
        if not scales:
            scales.append(float(torch.arange(3.0).sum()))
        return x * scales[0]

    graphed = tp.graphed(f)
    for scale in range(1, 4):
        x = torch.full((4,), float(scale), device=device)
        assert torch.equal(graphed(x), x * 3)


def test_conditionals_may_decide_otherwise_in_each_call(device):
    total = torch.zeros((), device=device)

    def f(x):
        total.add_(1)
        y = tp.cond(total > 1.5, lambda v: v * 2, lambda v: (v + 1).sin(), x)
        return tp.while_loop(lambda v: v.sum() < total * 50, lambda v: v * 1.5, y)

    x = torch.rand(4, device=device) + 1
    expected = [f(x) for _ in range(4)]
    total.zero_()
    graphed = tp.graphed(f)
    assert_all_equal([graphed(x) for _ in expected], expected)


def test_a_nan_among_the_numbers_is_the_same_number():
    repeats, x = Repeats(), torch.zeros(2)
    for _ in range(3):
        repeats.begin()
        repeats.before(torch.ops.aten.fill_.Scalar, (x, float("nan")), {})
    assert repeats.difference() is None
    repeats.begin()
    repeats.before(torch.ops.aten.fill_.Scalar, (x, 0.0), {})
    assert repeats.difference() == "aten.fill_.Scalar gets nan in one call and 0.0 in the next"
