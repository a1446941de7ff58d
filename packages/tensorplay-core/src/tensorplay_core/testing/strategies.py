"""Hypothesis strategies: programs that are legal to capture, their inputs, ways to call them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from . import profiles
from .programs import (
    Add,
    Block,
    Copy,
    Double,
    Drop,
    Fork,
    If,
    Illegal,
    Inputs,
    Less,
    Literal,
    Program,
    Raise,
    Statement,
    Switch,
    While,
    inner_blocks,
    with_inner_blocks,
)

__all__ = ["Call", "Churn", "Recapture", "Replay", "broken", "call_patterns", "inputs", "programs"]

profiles.load()

# Quarters are exact in float32 and make ties, which `less_` must get right.
_VALUES = st.integers(-16, 16).map(lambda quarters: quarters / 4)
_INDICES = st.integers(-2, 4)


@dataclass(frozen=True, slots=True)
class Replay:
    """Replays recording ``which``: on fresh inputs (None: on what is there), maybe on a stream."""

    which: int
    inputs: Inputs | None
    explicit_stream: bool = False


@dataclass(frozen=True, slots=True)
class Recapture:
    """Resets recording ``which`` and captures it again."""

    which: int


@dataclass(frozen=True, slots=True)
class Churn:
    """Allocates and drops eager buffers in between."""


Call = Replay | Recapture | Churn


@dataclass(slots=True)
class _Scope:
    """What a statement may name here."""

    read: list[str]
    write: list[str]
    flags: list[str]
    depth: int
    fresh: list[str]
    loops: list[int]
    conditionals: bool
    allocate: bool = True

    def inner(self) -> _Scope:
        """The scope of a body: it sees everything; what it makes fresh is its own."""
        return replace(self, read=[*self.read], write=[*self.write], fresh=[], depth=self.depth - 1)


@st.composite
def programs(
    draw: st.DrawFn, *, conditionals: bool = True, depth: int = 3, size: int = 6
) -> Program:
    """Programs that any driver can capture and whose loops end.

    Args:
        draw: Supplied by hypothesis.
        conditionals: Draw branches, loops and switches.
        depth: How deep they nest.
        size: Statements of the outermost block, at most.
    """
    base = Program(block=(), length=draw(st.sampled_from((1, 3, 8))))
    scope = _Scope(
        read=[*base.registers],
        write=[*base.registers],
        flags=[*base.flags],
        depth=depth,
        fresh=[],
        loops=[0],
        conditionals=conditionals,
    )
    return replace(base, block=draw(_blocks(scope, base, size, minimum=1)))


@st.composite
def _blocks(draw: st.DrawFn, scope: _Scope, base: Program, size: int, minimum: int = 0) -> Block:
    count = draw(st.integers(minimum, size))
    return tuple(draw(_statements(scope, base)) for _ in range(count))


def _kinds(scope: _Scope) -> list[str]:
    kinds = ["copy", "add", "add", "less"]
    if scope.allocate:
        kinds += ["double", "double"]
    if scope.fresh:
        kinds += ["drop", "drop"]
    if scope.depth > 0:
        kinds.append("fork")
        if scope.conditionals:
            kinds += ["if", "if", "while", "switch"]
    return kinds


@st.composite
def _statements(draw: st.DrawFn, scope: _Scope, base: Program) -> Statement:
    literals = st.lists(_VALUES, min_size=base.length, max_size=base.length).map(
        lambda values: Literal(tuple(values))
    )
    names, targets = st.sampled_from(scope.read), st.sampled_from(scope.write)
    match draw(st.sampled_from(_kinds(scope))):
        case "copy":
            target = draw(targets)
            others = [name for name in scope.read if name != target]
            return Copy(target, draw(st.sampled_from(others) | literals if others else literals))
        case "add":
            return Add(draw(targets), draw(names | literals | _VALUES))
        case "less":
            return Less(draw(st.sampled_from(scope.flags)), draw(names), draw(names | _VALUES))
        case "double":
            return draw(_doubles(scope))
        case "drop":
            name = draw(st.sampled_from(scope.fresh))
            for known in (scope.fresh, scope.read, scope.write):
                known.remove(name)
            return Drop(name)
        case "fork":
            return draw(_forks(scope, base))
        case "if":
            flag = draw(st.sampled_from(scope.flags))
            then = draw(_blocks(scope.inner(), base, 3))
            other = draw(st.none() | _blocks(scope.inner(), base, 3))
            return If(flag, then, other)
        case "while":
            return draw(_whiles(scope, base))
        case _:
            cases = tuple(
                draw(_blocks(scope.inner(), base, 2)) for _ in range(draw(st.integers(1, 3)))
            )
            return Switch(draw(st.sampled_from(base.indices)), cases)


@st.composite
def _doubles(draw: st.DrawFn, scope: _Scope) -> Double:
    source = draw(st.sampled_from(scope.read))
    scope.loops[0] += 1
    name = f"t{scope.loops[0]}"
    for known in (scope.fresh, scope.read, scope.write):
        known.append(name)
    return Double(name, source)


@st.composite
def _forks(draw: st.DrawFn, scope: _Scope, base: Program) -> Fork:
    # Two streams at once: what one writes, the other may neither read nor write.
    order = draw(st.permutations(scope.write))
    cut = draw(st.integers(1, max(1, len(order) - 1)))
    side, main = order[:cut], order[cut:]
    apart = draw(st.permutations(scope.flags))
    blocks = []
    for write, foreign, flags in ((side, main, apart[:1]), (main, side, apart[1:])):
        inner = replace(
            scope,
            read=[name for name in scope.read if name not in foreign],
            write=[*write],
            flags=[*flags],
            fresh=[],
            depth=0,
            allocate=False,
        )
        possible = bool(inner.read and write and flags)
        blocks.append(draw(_blocks(inner, base, 3, minimum=1)) if possible else ())
    return Fork(*blocks)


@st.composite
def _whiles(draw: st.DrawFn, scope: _Scope, base: Program) -> While:
    scope.loops[0] += 1
    name = f"w{scope.loops[0]}"
    inner = scope.inner()
    # The loop's own flag may be branched on inside, and is written anew at the end of the body.
    inner.flags = [*scope.flags, f"{name}.flag"]
    limit = draw(st.sampled_from(scope.read) | st.integers(-1, 4).map(float))
    steps = st.integers(1, 5)
    return While(
        name,
        limit=limit,
        body=draw(_blocks(inner, base, 3)),
        first=draw(st.booleans()),
        # A body may raise a limit that is a buffer for ever; one that is a constant ends the loop.
        max_steps=draw(steps if isinstance(limit, str) else st.none() | steps),
        explicit=draw(st.booleans()),
    )


@st.composite
def inputs(draw: st.DrawFn, program: Program) -> Inputs:
    """Fresh values of every register, flag and index."""
    floats = st.lists(_VALUES, min_size=program.length, max_size=program.length)
    return {
        **{name: draw(floats) for name in program.registers},
        **{name: [float(draw(st.booleans()))] for name in program.flags},
        **{name: [float(draw(_INDICES))] for name in program.indices},
    }


@st.composite
def call_patterns(
    draw: st.DrawFn, recorded: Iterable[Program], *, most: int = 8, recapture: bool = True
) -> list[Call]:
    """Ways to call several recordings: again and again, interleaved, recaptured, on a stream."""
    listed = list(recorded)
    which = st.integers(0, len(listed) - 1)
    calls: list[Call] = []
    kinds = st.sampled_from(("replay",) * 4 + ("churn", "recapture"))
    for kind in draw(st.lists(kinds, max_size=most)):
        chosen = draw(which)
        if kind == "churn":
            calls.append(Churn())
        elif kind == "recapture" and recapture:
            calls.append(Recapture(chosen))
        else:
            fresh = draw(st.none() | inputs(listed[chosen]))
            calls.append(Replay(chosen, fresh, draw(st.booleans())))
    return [*calls, *(Replay(one, draw(inputs(listed[one]))) for one in range(len(listed)))]


@st.composite
def broken(draw: st.DrawFn, program: Program, failure: Raise | Illegal) -> Program:
    """The program with ``failure`` put in at any point, at any depth."""
    return replace(program, block=draw(_broken_block(program.block, failure)))


@st.composite
def _broken_block(draw: st.DrawFn, block: Block, failure: Raise | Illegal) -> Block:
    place = draw(st.integers(0, len(block)))
    holders = [at for at, statement in enumerate(block) if inner_blocks(statement)]
    if not holders or draw(st.booleans()):
        return (*block[:place], failure, *block[place:])
    place = draw(st.sampled_from(holders))
    blocks = list(inner_blocks(block[place]))
    inner = draw(st.integers(0, len(blocks) - 1))
    blocks[inner] = draw(_broken_block(blocks[inner], failure))
    return (*block[:place], with_inner_blocks(block[place], blocks), *block[place + 1 :])
