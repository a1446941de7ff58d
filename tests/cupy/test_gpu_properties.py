"""Programs on CuPy arrays: a replay gives eager's bytes, and both give NumPy's numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy as cp
import numpy
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import tensorplay_cupy as tp

pytestmark = pytest.mark.gpu

SHAPE, REGISTERS = (5, 7), 3


class Unary(NamedTuple):
    name: str
    source: int
    target: int


class Binary(NamedTuple):
    name: str
    first: int
    second: int
    target: int


class Reduce(NamedTuple):
    name: str
    axis: int | None
    source: int
    target: int


class Lay(NamedTuple):
    name: str
    source: int
    target: int


class InPlace(NamedTuple):
    name: str
    target: int
    source: int


class Choose(NamedTuple):
    condition: int
    first: int
    second: int
    target: int


class Branch(NamedTuple):
    condition: int
    then: tuple[Any, ...]
    other: tuple[Any, ...]


class Loop(NamedTuple):
    times: int
    body: tuple[Any, ...]


UNARY = {
    "tanh": lambda xp, a: xp.tanh(a),
    "root": lambda xp, a: xp.sqrt(xp.abs(a)),
    "wave": lambda xp, a: xp.sin(a * 3) + 0.25,
    "half": lambda xp, a: a * 0.5,
    "sort": lambda xp, a: xp.sort(a, axis=-1),
    "scan": lambda xp, a: xp.tanh(xp.cumsum(a, axis=0)),
}
BINARY = {
    "add": lambda xp, a, b: xp.tanh(a + b),
    "multiply": lambda xp, a, b: a * b,
    "most": lambda xp, a, b: xp.maximum(a, b - 0.5),
    "turn": lambda xp, a, b: xp.arctan2(a, b + 3),
}
LAYS = {
    "reverse": lambda xp, a: a[::-1, ::-1] * 1.0,
    "roll": lambda xp, a: xp.concatenate([a[2:], a[:2]]),
    "turn": lambda xp, a: xp.ascontiguousarray(a.T).reshape(SHAPE),
    "every other": lambda xp, a: xp.repeat(a[:, ::2], 2, axis=1)[:, : SHAPE[1]] + 0.0,
}
IN_PLACE = {
    "add": lambda a, b: a.__iadd__(b),
    "scale": lambda a, b: a.__imul__(0.75),
    "row": lambda a, b: a[1:3].__iadd__(b[2:4]),
}


def run(program, registers, xp, control):
    """The registers after the program, which are the same objects where it wrote in place."""
    held = list(registers)
    for step in program:
        match step:
            case Unary(name, source, target):
                held[target] = UNARY[name](xp, held[source])
            case Binary(name, first, second, target):
                held[target] = BINARY[name](xp, held[first], held[second])
            case Reduce(name, axis, source, target):
                reduced = getattr(held[source], name)(axis=axis, keepdims=True)
                held[target] = xp.tanh(reduced) + xp.zeros(SHAPE)
            case Lay(name, source, target):
                held[target] = LAYS[name](xp, held[source])
            case InPlace(name, target, source):
                IN_PLACE[name](held[target], held[source])
            case Choose(condition, first, second, target):
                held[target] = xp.where(held[condition] > 0.1, held[first], held[second])
            case Branch(condition, then, other):
                held = list(
                    control.branch(
                        held[condition][:1, 0] > 0.1,
                        lambda *now, then=then: tuple(run(then, now, xp, control)),
                        lambda *now, other=other: tuple(run(other, now, xp, control)),
                        held,
                    )
                )
            case Loop(times, body):
                held = list(
                    control.loop(
                        times, lambda *now, body=body: tuple(run(body, now, xp, control)), held
                    )
                )
    return held


class OnHost:
    """Control flow of NumPy."""

    @staticmethod
    def branch(condition, then, other, held):
        return then(*held) if condition[0] else other(*held)

    @staticmethod
    def loop(times, body, held):
        held = [array.copy() for array in held]
        for _ in range(times):
            held = body(*held)
        return held


class OnDevice:
    """Control flow of the graph, which is plain control flow outside of one."""

    @staticmethod
    def branch(condition, then, other, held):
        return tp.cond(condition, then, other, *held)

    @staticmethod
    def loop(times, body, held):
        count = cp.zeros(1, dtype="i")
        _, *after = tp.while_loop(
            lambda count, *_: count < times,
            lambda count, *now: (count + 1, *body(*now)),
            (count, *held),
        )
        return after


places = st.integers(0, REGISTERS - 1)
simple = st.one_of(
    st.builds(Unary, st.sampled_from(sorted(UNARY)), places, places),
    st.builds(Binary, st.sampled_from(sorted(BINARY)), places, places, places),
    st.builds(
        Reduce,
        st.sampled_from(["sum", "mean", "max"]),
        st.sampled_from([None, 0, 1]),
        places,
        places,
    ),
    st.builds(Lay, st.sampled_from(sorted(LAYS)), places, places),
    st.builds(InPlace, st.sampled_from(sorted(IN_PLACE)), places, places),
    st.builds(Choose, places, places, places, places),
)


def nested(steps):
    block = st.lists(steps, min_size=1, max_size=4).map(tuple)
    return st.one_of(
        st.builds(Branch, places, block, block), st.builds(Loop, st.integers(0, 4), block)
    )


programs = st.lists(
    st.one_of(simple, nested(st.one_of(simple, nested(simple)))), min_size=1, max_size=8
)


def inputs(seed):
    rng = numpy.random.default_rng(seed)
    return [rng.uniform(-1, 1, SHAPE) for _ in range(REGISTERS)]


@given(program=programs, seeds=st.lists(st.integers(0, 1000), min_size=2, max_size=4))
def test_a_replay_is_eager_and_both_are_numpy(program, seeds):
    note(str(program))
    registers = [cp.asarray(array) for array in inputs(seeds[0])]
    run(program, [array.copy() for array in registers], cp, OnDevice)
    # Relaxed, because the kernels of branches that were not taken are compiled in the capture.
    with tp.graph(tp.CUDAGraph(), capture_error_mode="relaxed") as g:
        # In place on copies of the graph's own, so that every replay starts from the inputs.
        captured = run(program, [array.copy() for array in registers], cp, OnDevice)
    for seed in seeds:
        for array, value in zip(registers, inputs(seed), strict=True):
            array.set(value)
        g.replay()
        replayed = [array.get() for array in captured]
        eager = run(program, [array.copy() for array in registers], cp, OnDevice)
        expected = run(program, inputs(seed), numpy, OnHost)
        for one, other, value in zip(replayed, eager, expected, strict=True):
            assert one.tobytes() == other.get().tobytes()
            numpy.testing.assert_allclose(one, value, rtol=1e-9, atol=1e-9)
    g.close()
