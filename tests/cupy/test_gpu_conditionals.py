"""CuPy predicates on a GPU: loops and branches of the device, in all three forms."""

from __future__ import annotations

import gc

import cupy as cp
import numpy
import pytest

import tensorplay_cupy as tp

pytestmark = pytest.mark.gpu


def flag_of(value=True):
    return cp.full(1, value, dtype="?")


def test_a_loop_runs_until_its_predicate_falls():
    count, flag = cp.zeros(1, dtype="f"), flag_of()

    def turn():
        nonlocal count
        count += 1
        cp.less(count, numpy.float32(1000), out=flag)

    turn()
    with tp.graph(tp.CUDAGraph()) as g, g.while_loop(flag):
        turn()
    for _ in range(3):
        count.fill(0)
        flag.fill(True)
        g.replay()
        assert float(count[0]) == 1000


def test_a_body_allocates_and_nests():
    x, total, flag, even = cp.arange(4, dtype="f"), cp.zeros(4, dtype="f"), flag_of(), flag_of()

    def add(fresh):
        nonlocal total
        more = fresh + 1
        total += more

    def take(fresh):
        nonlocal total
        total -= fresh

    def turn(branch):
        nonlocal total
        fresh = x * 2
        total += fresh
        branch(fresh)
        cp.logical_not(even, out=even)
        cp.less(total[3:], numpy.float32(50), out=flag)

    def eager():
        result, odd = numpy.zeros(4, "f"), False
        while True:
            result = result + numpy.arange(4) * 2
            result = result - numpy.arange(4) * 2 if odd else result + numpy.arange(4) * 2 + 1
            odd = not odd
            if not result[3] < 50:
                return result

    for one in (add, take):
        turn(one)
    total * 2
    with tp.graph(tp.CUDAGraph()) as g:

        def branch(fresh):
            with g.if_else(even) as (then, other):
                with then:
                    add(fresh)
                with other:
                    take(fresh)

        with g.while_loop(flag):
            turn(branch)
        after = total * 2
    for _ in range(3):
        total.fill(0)
        flag.fill(True)
        even.fill(True)
        g.replay()
        junk = [cp.full(4, -7, dtype="f") for _ in range(64)]
        numpy.testing.assert_array_equal(total.get(), eager())
        numpy.testing.assert_array_equal(after.get(), 2 * eager())
        del junk


def test_a_switch_runs_the_case_of_its_index():
    total, index = cp.zeros(1, dtype="f"), cp.zeros(1, dtype="i")
    total += numpy.float32(0)
    with tp.graph(tp.CUDAGraph()) as g, g.switch(index, 3) as cases:
        for place, case in enumerate(cases):
            with case:
                total += numpy.float32(10**place)
    for chosen, expected in ((0, 1), (2, 101), (3, 101), (-1, 101), (1, 111)):
        index.fill(chosen)
        g.replay()
        assert float(total[0]) == expected


def test_the_functions_do_the_same_eagerly_and_captured():
    x, flag = cp.asarray([1.0, 2.0], dtype="f"), flag_of()

    def test(value, _):
        return cp.abs(value).max() < 100

    def run():
        value, count = tp.while_loop(
            test, lambda value, count: (value * 2, count + 1), (x, cp.zeros_like(x))
        )
        return tp.cond(flag, lambda a: a + 1, lambda a: a - 1, value), count

    eager = {}
    for value in (True, False):
        flag.fill(value)
        eager[value] = [one.get() for one in run()]
    numpy.testing.assert_array_equal(eager[True][0], [65, 129])
    with tp.graph(tp.CUDAGraph()) as g:
        captured = run()
    for value in (True, False, True):
        flag.fill(value)
        g.replay()
        for one, expected in zip(captured, eager[value], strict=True):
            numpy.testing.assert_array_equal(one.get(), expected)
    assert (x == cp.asarray([1.0, 2.0])).all()


def test_a_loop_that_cannot_end_is_refused():
    x, flag = cp.zeros(4, dtype="f"), flag_of()
    x += 1
    with (
        pytest.raises(tp.ConditionalError, match="never ends"),
        tp.graph(tp.CUDAGraph()) as g,
        g.while_loop(flag),
    ):
        x += 1


def test_a_graph_owns_its_predicates():
    x, flag, again = cp.zeros(4, dtype="f"), flag_of(), flag_of(False)
    x += 1
    x.fill(0)
    with tp.graph(tp.CUDAGraph(), track_operands=False) as g:
        with g.if_then(flag):
            x += 1
        with g.while_loop(flag) as loop:
            x += 1
            loop.condition(again)
    del flag, again
    gc.collect()
    junk = [flag_of(bool(place % 2)) for place in range(64)]
    g.replay()
    assert (x == 2).all()
    assert junk


@pytest.mark.parametrize(
    "predicate",
    [
        lambda: True,
        lambda: numpy.ones(1, "?"),
        lambda: cp.ones(2, dtype="?"),
        lambda: cp.ones(1, dtype="f"),
        lambda: cp.ones(1, dtype="i"),
    ],
    ids=["bool", "host", "two", "float", "int"],
)
def test_a_predicate_is_one_bool_on_the_gpu(predicate):
    x, given = cp.zeros(4, dtype="f"), predicate()
    x += 1
    with pytest.raises(tp.PredicateError) as caught, tp.graph(tp.CUDAGraph()) as g:
        x += 1
        with g.if_then(given):
            pytest.fail("the body was entered")
    assert caught.value.remedy


def test_conditionals_go_into_a_capture_that_cupy_began():
    x, flag = cp.zeros(4, dtype="f"), flag_of()
    x + 1, x * 2
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        y = tp.cond(flag, lambda a: a + 1, lambda a: a * 2, x)
        made = stream.end_capture()
        made.launch(stream)
        assert (y == 1).all()
        flag.fill(False)
        x.fill(4)
        made.launch(stream)
        assert (y == 8).all()


def test_a_host_callback_in_a_body_is_refused_by_name():
    x, flag = cp.zeros(4, dtype="f"), flag_of()
    x += 1
    with (
        pytest.raises(tp.OperationRefused, match="host"),
        tp.graph(tp.CUDAGraph()) as g,
        g.if_then(flag),
    ):
        x += 1
        tp.host_callback(print)


def test_a_failing_body_leaves_no_trace():
    x, flag = cp.zeros(4, dtype="f"), flag_of()
    x += 1
    x.fill(0)
    stream, allocator = cp.cuda.get_current_stream(), cp.cuda.get_allocator()
    with (
        pytest.raises(KeyError),
        tp.graph(tp.CUDAGraph()) as g,
        g.while_loop(flag),
        g.if_then(flag),
    ):
        x += 1
        raise KeyError
    assert cp.cuda.get_current_stream() == stream
    assert cp.cuda.get_allocator() == allocator
    with tp.graph(g), g.if_then(flag):
        x += 1
    g.replay()
    assert (x == 1).all()


def test_a_refused_read_in_a_body_is_named():
    x, flag = cp.zeros(4, dtype="f"), flag_of()
    x += 1
    x.fill(0)
    with (
        pytest.raises(tp.OperationRefused, match=r"cupy\.ndarray"),
        tp.graph(tp.CUDAGraph()) as g,
        g.while_loop(flag),
    ):
        x += 1
        float(x[0])
    with tp.graph(g):
        x += 1
    g.replay()
    assert (x == 1).all()
