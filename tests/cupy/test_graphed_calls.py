"""``graphed`` on stand-ins: NumPy for CuPy, and for a graph one that runs the function again."""

from __future__ import annotations

import contextlib
import sys
from typing import ClassVar

import numpy
import pytest

from tensorplay_core.errors import (
    CaptureError,
    GraphStateError,
    OperationRefused,
    SignatureMismatch,
)
from tensorplay_core.signature import facts as facts_of
from tensorplay_core.signature import refuse_unless_equal
from tensorplay_cupy import graphed as door

module = sys.modules["tensorplay_cupy.graphed"]


class Graph:
    """Stands for a graph: a replay calls the function on the buffers again."""

    made: ClassVar[list[Graph]] = []
    capturing: ClassVar[bool] = False

    def __init__(self):
        self.closed, self.again = False, None
        Graph.made.append(self)

    def stage(self, static, results):
        captured = [facts_of(array) for array in static]

        def plan(inputs):
            if Graph.capturing:
                raise CaptureError(doing="a", subject="b", met="c", remedy="d")
            refuse_unless_equal(captured, inputs, subject="it")
            for buffer, given in zip(static, inputs, strict=True):
                buffer[...] = given
            for result, value in zip(results, self.again(), strict=True):
                result[...] = value
            return tuple(result.copy() for result in results)

        return plan

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    """No GPU is asked for anything."""

    @contextlib.contextmanager
    def graph(made, pool, *, capture_error_mode, allow_empty):
        yield made

    def run(self, static, tree, original=module.GraphedFunction._run):
        arrays, results = original(self, static, tree)
        Graph.again_of = lambda: original(self, static, tree)[0]
        return arrays, results

    def capture(self, static, arrays, tree, original=module.GraphedFunction._capture):
        original(self, static, arrays, tree)
        self.cuda_graph.again = Graph.again_of

    Graph.made, Graph.capturing = [], False
    monkeypatch.setitem(sys.modules, "cupy", numpy)
    monkeypatch.setattr(module, "CUDAGraph", Graph)
    monkeypatch.setattr(module, "graph", graph)
    monkeypatch.setattr(module, "_capturing", lambda: Graph.capturing)
    monkeypatch.setattr(module.GraphedFunction, "_run", run)
    monkeypatch.setattr(module.GraphedFunction, "_capture", capture)


def test_calls_give_what_the_function_gives_in_its_structure():
    calls = []

    @door
    def function(x, y, scale=1.0):
        calls.append(None)
        return {"sum": x.sum(keepdims=True), "both": [x * scale, y["bias"]]}, "name"

    for value in range(1, 4):
        x, bias = numpy.full(3, float(value)), numpy.arange(3.0)
        found, name = function(x, {"bias": bias}, scale=2.0)
        assert name == "name"
        assert found["sum"] == [3 * value]
        numpy.testing.assert_array_equal(found["both"][0], 2 * x)
        numpy.testing.assert_array_equal(found["both"][1], bias)
    assert len(Graph.made) == 1
    # Once eagerly and once for the capture; then the stand-in's replays.
    assert len(calls) == 2 + 2


def test_results_are_in_memory_of_their_own():
    made = door(lambda x: x)
    results = [made(numpy.full(3, float(value))) for value in range(4)]
    for value, result in enumerate(results):
        assert (result == value).all()


def test_the_callers_arrays_are_left_alone():
    state = numpy.zeros(3)

    @door
    def step(x):
        state.__iadd__(x)
        return state * 1

    x = numpy.ones(3)
    step(x)
    assert (x == 1).all()


@pytest.mark.parametrize(
    ("args", "kwargs", "line"),
    [
        ((numpy.ones(4), {"k": 1}), {}, "args[0].shape: captured (3,), got (4,)"),
        ((numpy.ones(3, "f"), {"k": 1}), {}, "args[0].dtype: captured float64, got float32"),
        ((numpy.ones(3), {"k": 2}), {}, "args[1]['k']: captured 1, got 2"),
        ((numpy.ones(3), {"k": True}), {}, "args[1]['k']: captured 1, got True"),
        ((numpy.ones(3), {"k": numpy.ones(3)}), {}, "args[1]['k']: captured 1, got an array"),
        ((numpy.ones(3),), {}, "len(args): captured 2, got 1"),
        ((numpy.ones(3), {"k": 1}), {"z": 1}, "kwargs['z']: captured nothing, got 1"),
    ],
)
def test_other_arguments_are_refused_by_their_path(args, kwargs, line):
    made = door(lambda *_, **__: numpy.zeros(1))
    made(numpy.ones(3), {"k": 1})
    with pytest.raises(SignatureMismatch) as caught:
        made(*args, **kwargs)
    assert line in caught.value.differences
    assert "release()" in caught.value.remedy
    made(numpy.ones(3), {"k": 1})


def test_strided_arguments_are_like_themselves():
    made = door(lambda x: x * 2)
    whole = numpy.arange(24.0).reshape(4, 6)
    for value in range(3):
        x = (whole + value)[:, ::2]
        numpy.testing.assert_array_equal(made(x), x * 2)
    turned = door(lambda x: x * 2)
    turned(whole.T)
    numpy.testing.assert_array_equal(turned(whole.T), whole.T * 2)
    with pytest.raises(SignatureMismatch, match="strides"):
        turned(numpy.ascontiguousarray(whole.T))


@pytest.mark.parametrize("written", [-0.0, float("nan"), 5.0])
def test_a_function_that_writes_its_argument_is_refused(written):
    def write(x, options):
        options["a"][...] = written

    given = numpy.zeros(3)
    with pytest.raises(OperationRefused) as caught:
        door(write)(numpy.ones(2), {"a": given})
    assert "args[1]['a']" in caught.value.operation
    assert not numpy.signbit(given).any()
    assert (given == 0).all()
    assert not Graph.made


def test_a_capture_that_fails_closes_its_graph_and_may_be_tried_again():
    turns = []

    def function(x):
        turns.append(None)
        if len(turns) == 2:
            raise KeyError("in the capture")
        return x + 1

    made = door(function)
    with pytest.raises(KeyError):
        made(numpy.ones(3))
    assert Graph.made[0].closed
    assert made.cuda_graph is None
    assert (made(numpy.ones(3)) == 2).all()
    assert not Graph.made[1].closed


def test_preparing_captures_once_and_runs_nothing_before():
    made = door(lambda x: x + 1)
    assert made.prepare(numpy.ones(3)) is made
    assert made.cuda_graph is Graph.made[0]
    with pytest.raises(GraphStateError) as caught:
        made.prepare(numpy.ones(3))
    assert "release()" in caught.value.remedy
    assert (made(numpy.full(3, 4.0)) == 5).all()


def test_a_released_function_is_captured_anew():
    made = door(lambda x: x + 1)
    made(numpy.ones(3))
    made.release()
    made.release()
    assert Graph.made[0].closed
    assert (made(numpy.ones(5)) == 2).all()
    assert len(Graph.made) == 2


def test_inside_a_capture_it_is_its_function():
    made = door(lambda x: x + 1)
    Graph.capturing = True
    assert (made(numpy.ones(3)) == 2).all()
    assert not Graph.made
    Graph.capturing = False
    made(numpy.ones(3))
    Graph.capturing = True
    assert (made(numpy.ones(3)) == 2).all()
    assert len(Graph.made) == 1
