"""``graphed`` on a GPU: owned results, a strict signature, and the first call like any other."""

from __future__ import annotations

import threading

import cupy as cp
import numpy
import pytest

import tensorplay_cupy as tp

pytestmark = pytest.mark.gpu


def test_calls_give_what_the_function_gives():
    def function(x, y, scale=1.0):
        z = x * scale + y["bias"]
        return {"sum": z.sum(), "all": (z, z[::2])}, scale

    made = tp.graphed(function)
    for seed in range(5):
        rng = numpy.random.default_rng(seed)
        x, bias = cp.asarray(rng.random((4, 6))), cp.asarray(rng.random(6))
        found, expected = made(x, {"bias": bias}, 2.0), function(x, {"bias": bias}, 2.0)
        assert found[1] == expected[1]
        cp.testing.assert_array_equal(found[0]["sum"], expected[0]["sum"])
        for one, other in zip(found[0]["all"], expected[0]["all"], strict=True):
            cp.testing.assert_array_equal(one, other)
    assert made.cuda_graph is not None
    assert made.cuda_graph.topology.count() > 0


def test_a_thread_that_never_used_the_device_may_call():
    """CUDA ends a process whose thread sets a kernel before it has a context."""
    made, x, found = tp.graphed(lambda x: x * 2 + 1), cp.arange(8, dtype="f"), []
    for _ in range(3):
        made(x)
    cp.cuda.Device().synchronize()
    stream = cp.cuda.Stream(non_blocking=True)

    def work():
        with stream:
            found.append(made(x))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    cp.cuda.Device().synchronize()
    for one in found:
        cp.testing.assert_array_equal(one, x * 2 + 1)
    assert len(found) == 2


def test_results_stay():
    made = tp.graphed(lambda x: x + 1)
    results = [made(cp.full(8, value, dtype="f")) for value in range(10)]
    for value, result in enumerate(results):
        assert (result == value + 1).all()


def test_state_by_closure_changes_once_a_call():
    state = cp.zeros(4)

    @tp.graphed
    def step(x):
        nonlocal state
        state += x
        return state * 2

    for count in range(1, 6):
        assert (step(cp.ones(4)) == 2 * count).all()
        assert (state == count).all()


def test_preparing_runs_nothing():
    state = cp.zeros(4)
    state += cp.ones(4)
    state.fill(0)

    @tp.graphed
    def step(x):
        nonlocal state
        state += x

    assert step.prepare(cp.ones(4)) is step
    assert (state == 0).all()
    step(cp.full(4, 3.0))
    assert (state == 3).all()
    with pytest.raises(tp.GraphStateError):
        step.prepare(cp.ones(4))


def test_other_arguments_are_refused_with_their_paths():
    made = tp.graphed(lambda x, options: x * options["k"])
    made(cp.ones(4), {"k": 2})
    for args, words in (
        ((cp.ones(5), {"k": 2}), "args[0].shape"),
        ((cp.ones(4, dtype="f"), {"k": 2}), "args[0].dtype"),
        ((cp.ones(4), {"k": 3}), "args[1]['k']: captured 2, got 3"),
        ((cp.ones(4), {"k": 2.0}), "args[1]['k']"),
        ((cp.ones(4), {"k": cp.ones(4)}), "args[1]['k']: captured 2, got an array"),
        ((cp.ones(4), {"j": 2}), "args[1]['j']"),
    ):
        with pytest.raises(tp.SignatureMismatch) as caught:
            made(*args)
        assert any(words in line for line in caught.value.differences)
    assert (made(cp.ones(4), {"k": 2}) == 2).all()
    made.release()
    assert (made(cp.ones(5), {"k": 3}) == 3).all()


def test_a_function_that_writes_its_argument_is_refused():
    made = tp.graphed(lambda x, y: cp.add(x, y, out=x))
    x = cp.ones(4)
    with pytest.raises(tp.OperationRefused, match=r"args\[0\]"):
        made(x, cp.ones(4))
    assert (x == 1).all()


def test_what_the_function_cannot_do_in_a_capture_is_named():
    with pytest.raises(tp.OperationRefused) as caught:
        tp.graphed(lambda x: x * float(x.sum()))(cp.ones(4))
    assert __file__ in caught.value.where


def test_inside_a_capture_it_is_its_function():
    made = tp.graphed(lambda x: x * 3)
    x = cp.ones(4)
    made(x)
    with tp.graph(tp.CUDAGraph()) as g:
        y = made(x) + 1
    x.fill(2)
    g.replay()
    assert (y == 7).all()


def test_threads_may_call_at_once():
    made = tp.graphed(lambda x: cp.sqrt(x) * 2)
    made(cp.ones(1 << 12))
    failed, barrier = [], threading.Barrier(4)

    def run(value):
        try:
            barrier.wait()
            with cp.cuda.Stream(non_blocking=True):
                for step in range(50):
                    given = cp.full(1 << 12, float(value + step))
                    result = made(given)
                    cp.testing.assert_array_equal(result, cp.sqrt(given) * 2)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(100 * place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_strided_arguments_and_results():
    made = tp.graphed(lambda x: x.T)
    for seed in range(3):
        x = cp.asarray(numpy.random.default_rng(seed).random((8, 12)))[:, ::2]
        cp.testing.assert_array_equal(made(x), x.T)


def test_methods_are_graphs_of_their_instances():
    class Model:
        def __init__(self, factor):
            self.factor = cp.full(4, factor)

        @tp.graphed
        def scale(self, x):
            return x * self.factor

    one, two = Model(2.0), Model(3.0)
    for value in (1.0, 5.0):
        x = cp.full(4, value)
        assert (one.scale(x) == 2 * value).all()
        assert (two.scale(x) == 3 * value).all()
