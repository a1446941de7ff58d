"""Of the suite's own tools: programs end, failures go in once, the oracle is plain arithmetic."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorplay_core.testing.interpreter import Eager, Memory, bits, run
from tensorplay_core.testing.programs import (
    Add,
    Copy,
    Double,
    Drop,
    Fork,
    If,
    Illegal,
    Less,
    Literal,
    Program,
    Raise,
    Switch,
    While,
    inner_blocks,
    walk,
    with_inner_blocks,
)
from tensorplay_core.testing.strategies import Replay, broken, call_patterns, inputs, programs


def _single(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class Plain:
    """A workbench of Python lists. It has no streams and never captures."""

    runtime: Any = None
    device: Any = None

    def buffer(self, values: Any) -> list[float]:
        return [_single(value) for value in values]

    def flag(self, value: bool) -> list[float]:
        return [float(value)]

    index = flag

    def read(self, buffer: list[float]) -> list[float]:
        return list(buffer)

    def write(self, buffer: list[float], values: Any) -> None:
        buffer[:] = [_single(value) for value in values]

    copy_ = write

    def add_(self, destination: list[float], source: Any) -> None:
        added = source if isinstance(source, list) else [source] * len(destination)
        destination[:] = [_single(a + b) for a, b in zip(destination, added, strict=True)]

    def double(self, source: list[float]) -> list[float]:
        return [_single(value * 2) for value in source]

    def less_(self, out: list[float], first: list[float], second: Any) -> None:
        out[0] = float(first[0] < (second[0] if isinstance(second, list) else second))

    def fork(self) -> None:
        return None

    def join(self, stream: None) -> None:
        return None

    @contextlib.contextmanager
    def on(self, stream: None) -> Iterator[None]:
        yield

    def fail(self) -> None:
        return None


def _outcome(program: Program, fed: Any) -> dict[str, list[float]]:
    bench: Any = Plain()
    memory = Memory(bench, program)
    memory.feed(fed)
    memory.prepare()
    run(memory, Eager(bench))
    assert not memory.literals
    return {**memory.buffers, **memory.results}


def test_straight_line_work_is_arithmetic() -> None:
    block = (
        Add("a", 0.5),
        Add("a", "b"),
        Double("t", "a"),
        Copy("c", Literal((9.0,))),
        Add("c", "t"),
        Drop("t"),
        Less("p", "a", "c"),
        Less("q", "a", 1.0),
        Fork((Add("a", 1.0),), (Add("b", 1.0),)),
    )
    after = _outcome(Program(block, length=1), {"a": [1.0], "b": [2.0]})
    assert (after["a"], after["b"], after["c"]) == ([4.5], [3.0], [16.0])
    assert (after["p"], after["q"]) == ([1.0], [0.0])
    assert "t" not in after


def test_branches_and_switches_choose_one_block() -> None:
    block = (
        If("p", (Add("a", 1.0),), (Add("a", 10.0),)),
        If("q", (Add("a", 100.0),)),
        Switch("i", ((Add("b", 1.0),), (Add("b", 10.0),))),
    )
    for p, q, i, a, b in ((1, 1, 0, 101, 1), (0, 0, 1, 10, 10), (1, 0, 2, 1, 0), (1, 0, -1, 1, 0)):
        after = _outcome(Program(block, length=1), {"p": [p], "q": [q], "i": [i]})
        assert (after["a"], after["b"]) == ([a], [b])


def test_loops_count_to_their_limit_or_to_their_cap() -> None:
    def runs(limit: str | float, first: bool, most: int | None) -> float:
        loop = While("w", limit, (Add("a", 1.0),), first=first, max_steps=most)
        return _outcome(Program((loop,), length=1), {"b": [4.0]})["a"][0]

    assert [runs(3.0, False, None), runs("b", False, None)] == [3.0, 4.0]
    assert [runs(-1.0, False, None), runs(-1.0, True, None)] == [0.0, 1.0]
    assert [runs(3.0, False, 2), runs(3.0, True, 2)] == [2.0, 2.0]


def test_what_a_body_makes_is_gone_after_it() -> None:
    block = (If("p", (Double("t", "a"), Add("b", "t"))), Double("u", "b"))
    after = _outcome(Program(block, length=1), {"a": [3.0], "p": [1.0]})
    assert "t" not in after
    assert after["u"] == [12.0]


@given(data=st.data())
def test_any_program_ends_and_is_determined_by_its_inputs(data: st.DataObject) -> None:
    program = data.draw(programs())
    fed = data.draw(inputs(program))
    first, second = _outcome(program, fed), _outcome(program, fed)
    assert {k: bits(v) for k, v in first.items()} == {k: bits(v) for k, v in second.items()}


@given(data=st.data())
def test_programs_without_conditionals_have_none(data: st.DataObject) -> None:
    program = data.draw(programs(conditionals=False))
    assert not any(isinstance(one, If | While | Switch) for one in walk(program.block))


@given(data=st.data())
def test_streams_of_a_fork_share_no_written_buffer(data: st.DataObject) -> None:
    program = data.draw(programs())
    for fork in (one for one in walk(program.block) if isinstance(one, Fork)):
        (read, written), (others_read, others_written) = (
            _touched(block) for block in inner_blocks(fork)
        )
        assert not written & (others_read | others_written)
        assert not others_written & (read | written)


def _touched(block: Any) -> tuple[set[str], set[str]]:
    read, written = set(), set()
    for one in walk(block):
        match one:
            case Copy(target, source) | Add(target, source) | Double(target, source):
                written.add(target)
                read |= {source} if isinstance(source, str) else set()
            case Less(flag, first, second):
                written.add(flag)
                read |= {first} | ({second} if isinstance(second, str) else set())
    return read, written


@given(data=st.data())
def test_a_failure_is_put_in_once_and_nothing_else_changes(data: st.DataObject) -> None:
    program = data.draw(programs())
    failure = data.draw(st.sampled_from((Raise(KeyError()), Illegal())))
    changed = data.draw(broken(program, failure))
    kinds = [type(one) for one in walk(changed.block)]
    assert kinds.count(type(failure)) == 1
    kinds.remove(type(failure))
    assert kinds == [type(one) for one in walk(program.block)]


@given(data=st.data())
def test_statements_are_rebuilt_from_their_blocks(data: st.DataObject) -> None:
    for one in walk(data.draw(programs()).block):
        again = with_inner_blocks(one, inner_blocks(one))
        # A branch that is not there has an empty block.
        lacks = isinstance(one, If) and one.other is None
        assert again == (replace(one, other=()) if lacks else one)


@given(data=st.data())
def test_every_recording_is_replayed_on_fresh_inputs_in_the_end(data: st.DataObject) -> None:
    several = data.draw(st.lists(programs(size=2), min_size=1, max_size=3))
    calls = data.draw(call_patterns(several))
    last = calls[-len(several) :]
    assert [call.which for call in last if isinstance(call, Replay)] == list(range(len(several)))
    assert all(isinstance(call, Replay) and call.inputs is not None for call in last)
