"""Staged launches without Python in between, over a driver that is played in the host's memory."""

from __future__ import annotations

import ctypes
import gc
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorplay_core.drivers.cuda.track import Track
from tensorplay_core.drivers.cuda.turn import Turn

from .built import BUILT, needs_parts

pytestmark = needs_parts

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
ASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
GRAPH, NODE, FUNCTION, STREAM, CONTEXT_HANDLE = 0x1000, 0x2000, 0x3000, 0x4000, 0x5000


class Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )


class Played:
    """A graph that adds 1 to each of its inputs and sums them up, on a driver that is played.

    As CUDA's, an executable has the parameters that were set last, at the time they were set.

    Args:
        shapes: Of the inputs.
        yields: It hands out its result; else that is to be found in its buffer.
        asks: It takes its turn by calls, not by a flag.
    """

    def __init__(
        self, shapes: list[tuple[int, ...]], *, yields: bool = True, asks: bool = False
    ) -> None:
        self.yields = yields
        self.static = [torch.zeros(shape) for shape in shapes]
        self.result = torch.zeros(())
        self.stream, self.capturing = STREAM, 0
        self.codes = {"launch": 0, "set": 0, "ask": 0, "context": 0}
        self.context: int | None = CONTEXT_HANDLE
        self.log: list[str] = []
        self.long_way_calls: list[Any] = []
        count = len(shapes) + yields
        self.table = (ctypes.c_uint64 * count)()
        self.pointer = (ctypes.c_void_p * 1)(ctypes.addressof(self.table))
        self.parameters: list[int] = [0] * count
        self.turn = Turn()
        self.executable = SimpleNamespace(closed=False, generation=0)
        self.native = object()
        self.order = SimpleNamespace(last=self.native, where=STREAM)
        self.keep = SimpleNamespace(sets=0)
        self.dead: list[str] = []
        self.functions = (LAUNCH(self.launch), SET(self.set), ASK(self.ask), CONTEXT(self.get))
        played: Any = self
        track = Track(
            executable=played.executable,
            generation=0,
            dead=self.dead,
            take=self.turn.take,
            give=self.turn.give,
            order=played.order,
            native=self.native,
            keep=played.keep,
            graph=GRAPH,
            node=NODE,
            function=FUNCTION,
            blocks=3,
            rows=count,
            threads=128,
            parameters=ctypes.addressof(self.pointer),
            table=ctypes.addressof(self.table),
            turn=0 if asks or self.turn.token is None else self.turn.token.flag,
            special=False,
            context=CONTEXT_HANDLE,
        )
        assert BUILT is not None
        self.plan = BUILT.Rail(
            self.long_way,
            self.static,
            [self.result] if yields else [],
            track,
            tuple(ctypes.cast(one, ctypes.c_void_p).value or 0 for one in self.functions),
            lambda device: self.stream,
            0,
        )

    def set(self, graph: int, node: int, address: int) -> int:
        self.log.append("set")
        given = Node.from_address(address)
        assert (graph, node, given.func) == (GRAPH, NODE, FUNCTION)
        assert (list(given.grid), list(given.block)) == ([3, len(self.table), 1], [128, 1, 1])
        assert (given.shared, given.extra, given.kern, given.ctx) == (0, None, None, None)
        if not self.codes["set"]:
            assert given.parameters[0] == ctypes.addressof(self.table)
            self.parameters = list(self.table)
        return self.codes["set"]

    def launch(self, graph: int, stream: int | None) -> int:
        self.log.append("launch")
        assert (graph, stream) == (GRAPH, self.stream)
        if not self.codes["launch"]:
            self.run()
        return self.codes["launch"]

    def run(self) -> None:
        for static, source in zip(self.static, self.parameters, strict=False):
            ctypes.memmove(static.data_ptr(), source, static.nbytes)
        self.result.copy_(sum((one + 1).sum() for one in self.static))
        if self.yields:
            ctypes.memmove(self.parameters[-1], self.result.data_ptr(), self.result.nbytes)

    def get(self, current: Any) -> int:
        current[0] = self.context
        return self.codes["context"]

    def ask(self, stream: int | None, status: Any) -> int:
        self.log.append("ask")
        status[0] = self.capturing
        return self.codes["ask"]

    def long_way(self, inputs: Any, **options: Any) -> tuple[torch.Tensor, ...]:
        """What Python's launches do: other parameters are set behind the plan's back."""
        self.long_way_calls.append(inputs)
        self.turn.take()
        try:
            made = [torch.empty(())] if self.yields else []
            self.keep.sets += 1
            self.parameters = [one.data_ptr() for one in (*inputs, *made)]
            self.run()
            self.order.last, self.order.where = self.native, self.stream
        finally:
            self.turn.give(None)
        return tuple(made)


def wanted(inputs: list[torch.Tensor]) -> torch.Tensor:
    return torch.as_tensor(sum((one + 1).sum() for one in inputs))


@pytest.fixture(params=["by a flag", "by calls"])
def played(request: pytest.FixtureRequest) -> Played:
    return Played([(2, 3), (4,)], asks=request.param == "by calls")


def fresh(played: Played) -> list[torch.Tensor]:
    return [torch.randn(one.shape) for one in played.static]


def test_inputs_go_in_and_a_result_comes_out(played):
    for _ in range(3):
        inputs = fresh(played)
        (result,) = played.plan(inputs)
        assert torch.equal(result, wanted(inputs))
        assert result.data_ptr() != played.result.data_ptr()
        (again,) = played.plan(tuple(inputs))
        assert torch.equal(again, result)
    assert played.long_way_calls == []


def test_parameters_are_set_only_where_addresses_changed():
    played = Played([(2, 3), (4,)], yields=False)
    inputs, others = fresh(played), fresh(played)
    for chosen in (inputs, inputs, inputs, others, others, inputs):
        # Other values at the same addresses are read all the same.
        chosen[0].mul_(2)
        assert played.plan(chosen) == ()
        assert torch.equal(played.result, wanted(chosen))
    assert (played.log.count("set"), played.log.count("launch")) == (3, 6)


def test_what_python_s_launches_set_does_not_stay():
    played = Played([(2, 3), (4,)], yields=False)
    inputs, others = fresh(played), fresh(played)
    for _ in range(2):
        played.plan(inputs)
        played.long_way(others)
        played.plan(inputs)
        assert torch.equal(played.result, wanted(inputs))
        played.plan(others, stream=None)
        played.plan(inputs)
        assert torch.equal(played.result, wanted(inputs))


@pytest.mark.parametrize("what", ["set", "launch"])
def test_a_call_that_failed_is_left_to_python_and_not_taken_for_done(played, what):
    inputs, others = fresh(played), fresh(played)
    played.plan(inputs)
    played.codes[what] = 700
    (result,) = played.plan(others)
    assert torch.equal(result, wanted(others))
    assert played.long_way_calls == [others]
    played.codes[what] = 0
    for one in (others, inputs, others):
        (result,) = played.plan(one)
        assert torch.equal(result, wanted(one))


UNUSUAL = {
    "another stream": lambda p: setattr(p, "stream", 0x5000),
    "capturing": lambda p: setattr(p, "capturing", 1),
    "an unknown stream": lambda p: p.codes.update(ask=400),
    "no context": lambda p: setattr(p, "context", None),
    "another context": lambda p: setattr(p, "context", CONTEXT_HANDLE + 1),
    "an unknown context": lambda p: p.codes.update(context=3),
    "closed": lambda p: setattr(p.executable, "closed", True),
    "updated": lambda p: setattr(p.executable, "generation", 1),
    "dead inputs": lambda p: p.dead.append("x"),
    "another launch": lambda p: setattr(p.order, "last", None),
    "no stream yet": lambda p: setattr(p.order, "where", None),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_python(played, name):
    inputs = fresh(played)
    UNUSUAL[name](played)
    (result,) = played.plan(inputs)
    assert played.long_way_calls == [inputs]
    assert {"set", "launch"}.isdisjoint(played.log)
    assert torch.equal(result, wanted(inputs))
    played.turn.take()


def test_a_turn_that_is_taken_is_waited_for_by_python(played):
    played.turn.take()
    with pytest.raises(IndexError):  # Which here does not wait.
        played.plan(fresh(played))
    played.turn.give(None)
    assert played.log == []


def test_inputs_unlike_the_buffers_are_left_to_python(played):
    inputs = fresh(played)
    for unlike in (
        [inputs[0].t().contiguous().t(), inputs[1]],
        [inputs[0].double(), inputs[1]],
        [played.static[0], inputs[1]],
        [inputs[0], played.static[0].view(-1)[1:5]],
        inputs[:1],
        [*inputs, inputs[0]],
        (one for one in inputs),
    ):
        before = len(played.long_way_calls)
        with suppress(AttributeError, TypeError, ValueError):
            played.plan(unlike)
        assert len(played.long_way_calls) == before + 1
    assert {"set", "launch"}.isdisjoint(played.log)


def test_options_are_left_to_python(played):
    inputs = fresh(played)
    played.plan(inputs, stream=3)
    assert played.long_way_calls == [inputs]
    with pytest.raises(TypeError):
        played.plan()


def test_a_launch_inside_a_launch_is_left_to_python(played):
    inputs, found = fresh(played), []
    run = played.run

    def again() -> None:
        run()
        played.run = run
        try:
            played.plan(inputs)
        except IndexError:
            found.append("refused")

    played.run = again
    (result,) = played.plan(inputs)
    assert found == ["refused"]
    assert torch.equal(result, wanted(inputs))


def test_a_plan_lets_go_of_what_it_holds():
    played = Played([(2,)])
    played.plan([torch.ones(2)])
    gone = weakref.ref(played)
    del played
    gc.collect()
    assert gone() is None


@settings(deadline=None)
@given(st.data())
def test_any_sequence_of_launches_is_right(data):
    """Few inputs over and over, results kept or dropped, Python's launches and failures between."""
    played = Played([(2,), (3,)], yields=data.draw(st.booleans()))
    inputs = [[torch.randn(2), torch.randn(3)] for _ in range(3)]
    kept = []
    for _ in range(data.draw(st.integers(1, 12))):
        chosen = [data.draw(st.sampled_from(inputs))[place] for place in range(2)]
        if data.draw(st.booleans()):
            chosen[0].add_(1)
        played.codes.update(
            set=data.draw(st.sampled_from([0, 0, 0, 1])),
            launch=data.draw(st.sampled_from([0, 0, 0, 1])),
        )
        played.capturing = int(data.draw(st.integers(0, 5)) == 0)
        results = played.plan(chosen)
        for one in (*results, played.result):
            assert torch.equal(one, wanted(chosen))
        if data.draw(st.booleans()):
            kept += [(one, one.clone()) for one in results]
        del results
    for result, expected in kept:
        assert torch.equal(result, expected)
