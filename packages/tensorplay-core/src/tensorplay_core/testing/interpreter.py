"""The one interpreter of programs: it issues the work, and a ``Control`` says what a branch is.

Plain host control flow (``Eager``) is the oracle; the others make conditional nodes of a graph:
through its context managers (``Nodes``), its seed-named methods (``Methods``) or the functions
``cond()`` and ``while_loop()`` (``Functions``).
"""

from __future__ import annotations

import struct
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tensorplay_core.control_flow import cond, while_loop

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
    walk,
)
from .workbench import Workbench

__all__ = ["Control", "Eager", "Functions", "Memory", "Methods", "Nodes", "Thunk", "bits", "run"]

Thunk: TypeAlias = Callable[[], None]


def bits(values: Sequence[float]) -> bytes:
    """The float32 bytes of values read back: what "bit for bit" compares."""
    return struct.pack(f"<{len(values)}f", *values)


@dataclass(slots=True, eq=False)
class Memory:
    """The buffers a program works on, made anew from the workbench and filled with zeros."""

    workbench: Workbench
    program: Program
    buffers: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    literals: dict[Literal, Any] = field(default_factory=dict)
    zero: Any = None

    def __post_init__(self) -> None:
        bench, program = self.workbench, self.program
        self.zero = bench.buffer([0.0])
        self.buffers.update(
            {name: bench.buffer([0.0] * program.length) for name in program.registers}
        )
        self.buffers.update({name: bench.flag(False) for name in program.flags})
        self.buffers.update({name: bench.index(0) for name in program.indices})
        for statement in walk(program.block):
            if isinstance(statement, While):
                self.buffers[f"{statement.name}.count"] = bench.buffer([0.0])
                self.buffers[f"{statement.name}.flag"] = bench.flag(False)

    def prepare(self) -> None:
        """Makes the literals, which a capture cannot: filling one from the host is not work.

        ``run`` lets them go, so that from then on only a graph can hold them.
        """
        for statement in walk(self.program.block):
            if isinstance(statement, Copy | Add) and isinstance(statement.source, Literal):
                values = statement.source.values
                self.literals[statement.source] = self.workbench.buffer(values)

    def feed(self, inputs: Inputs) -> None:
        """Writes fresh inputs from the host."""
        for name, values in inputs.items():
            self.workbench.write(self.buffers[name], values)

    def read(self, *, results: bool = True) -> dict[str, bytes]:
        """The bytes of every buffer and, with ``results``, of every fresh result."""
        wanted = {**self.buffers, **self.results} if results else self.buffers
        return {name: bits(self.workbench.read(buffer)) for name, buffer in wanted.items()}


class Control(Protocol):
    """What branches and loops are."""

    def branch(self, flag: Any, then: Thunk, other: Thunk | None) -> None:
        """``then`` or ``other``, by the flag."""
        ...

    def loop(self, flag: Any, step: Thunk, loop: While) -> None:
        """``step``, which writes the flag, while it is set."""
        ...

    def switch(self, index: Any, cases: Sequence[Thunk]) -> None:
        """The case of that index."""
        ...


@dataclass(frozen=True, slots=True)
class Eager:
    """Host control flow that reads predicates back: the oracle."""

    workbench: Workbench

    def branch(self, flag: Any, then: Thunk, other: Thunk | None) -> None:
        """Reads the flag and runs one side."""
        if self.workbench.read(flag)[0]:
            then()
        elif other is not None:
            other()

    def loop(self, flag: Any, step: Thunk, loop: While) -> None:
        """Runs ``step`` while the flag reads true."""
        steps = 0
        while (loop.first and not steps) or self.workbench.read(flag)[0]:
            if steps == loop.max_steps:
                return
            step()
            steps += 1

    def switch(self, index: Any, cases: Sequence[Thunk]) -> None:
        """Reads the index and runs its case."""
        chosen = int(self.workbench.read(index)[0])
        if 0 <= chosen < len(cases):
            cases[chosen]()


@dataclass(frozen=True, slots=True)
class Nodes:
    """Conditional nodes through the context managers of a graph."""

    graph: Any

    def branch(self, flag: Any, then: Thunk, other: Thunk | None) -> None:
        """One if node, with or without an else."""
        if other is None:
            with self.graph.if_then(flag):
                then()
            return
        with self.graph.if_else(flag) as (yes, no):
            with yes:
                then()
            with no:
                other()

    def loop(self, flag: Any, step: Thunk, loop: While) -> None:
        """One while node."""
        node = self.graph.while_loop(flag, first=loop.first, max_steps=loop.max_steps)
        with node as body:
            step()
            if loop.explicit:
                body.condition(flag)

    def switch(self, index: Any, cases: Sequence[Thunk]) -> None:
        """One switch node."""
        with self.graph.switch(index, len(cases)) as bodies:
            for body, case in zip(bodies, cases, strict=True):
                with body:
                    case()


@dataclass(frozen=True, slots=True)
class Methods(Nodes):
    """The seed-named methods where there is one, else the context managers."""

    def branch(self, flag: Any, then: Thunk, other: Thunk | None) -> None:
        """``begin_capture_to_if_node``, unless there is an else."""
        if other is not None:
            Nodes.branch(self, flag, then, other)
            return
        self.graph.begin_capture_to_if_node(flag)
        then()
        self.graph.end_capture_to_conditional_node()

    def loop(self, flag: Any, step: Thunk, loop: While) -> None:
        """``begin_capture_to_while_node``, unless there is an option it does not have."""
        if loop.first or loop.max_steps is not None:
            Nodes.loop(self, flag, step, loop)
            return
        self.graph.begin_capture_to_while_node(flag)
        step()
        if loop.explicit:
            self.graph.set_conditional_handle_for_current_node(flag)
        self.graph.end_capture_to_conditional_node()


@dataclass(frozen=True, slots=True)
class Functions(Nodes):
    """The functions ``cond()`` and ``while_loop()``, which serve both worlds with one code."""

    driver: str

    def branch(self, flag: Any, then: Thunk, other: Thunk | None) -> None:
        """``cond`` of two functions that return nothing."""
        cond(flag, then, other or (lambda: None), driver=self.driver)

    def loop(self, flag: Any, step: Thunk, loop: While) -> None:
        """``while_loop`` that carries the flag, unless there is an option it does not have."""
        if loop.first:
            Nodes.loop(self, flag, step, loop)
            return

        def body(_: Any) -> Any:
            step()
            return flag

        # The step writes the flag in place: the carried copy follows it.
        while_loop(lambda _: flag, body, flag, max_steps=loop.max_steps, driver=self.driver)


def run(memory: Memory, control: Control) -> None:
    """Issues the program on its memory, ``prepare``d before, and lets its literals go.

    Fresh results of the outermost block end in ``memory.results``.
    """
    memory.results.clear()
    try:
        _Run(memory, control).block(memory.program.block, ChainMap(memory.results, memory.buffers))
    finally:
        memory.literals.clear()


@dataclass(frozen=True, slots=True)
class _Run:
    memory: Memory
    control: Control

    def block(self, block: Block, names: MutableMapping[str, Any]) -> None:
        for statement in block:
            self.statement(statement, names)

    def body(self, block: Block, names: MutableMapping[str, Any]) -> Thunk:
        # What a body makes is gone when it ends: it may never have run.
        return lambda: self.block(block, ChainMap({}, names))

    def source(self, source: str | Literal | float, names: Mapping[str, Any]) -> Any:
        if isinstance(source, Literal):
            return self.memory.literals[source]
        return names[source] if isinstance(source, str) else source

    def statement(self, statement: Statement, names: MutableMapping[str, Any]) -> None:
        bench = self.memory.workbench
        match statement:
            case Copy(target, source):
                bench.copy_(names[target], self.source(source, names))
            case Add(target, source):
                bench.add_(names[target], self.source(source, names))
            case Double(target, source):
                names[target] = bench.double(names[source])
            case Drop(target):
                del names[target]
            case Less(flag, first, second):
                bench.less_(names[flag], names[first], self.source(second, names))
            case Fork(side, main):
                stream = bench.fork()
                with bench.on(stream):
                    self.block(side, names)
                self.block(main, names)
                bench.join(stream)
            case If(flag, then, other):
                otherwise = None if other is None else self.body(other, names)
                self.control.branch(names[flag], self.body(then, names), otherwise)
            case While():
                self.loop(statement, names)
            case Switch(index, cases):
                self.control.switch(names[index], [self.body(case, names) for case in cases])
            case Raise(error):
                raise error
            case Illegal():
                bench.fail()

    def loop(self, loop: While, names: MutableMapping[str, Any]) -> None:
        bench = self.memory.workbench
        count, flag = names[f"{loop.name}.count"], names[f"{loop.name}.flag"]
        body = self.body(loop.body, names)

        def test() -> None:
            bench.less_(flag, count, self.source(loop.limit, names))

        def step() -> None:
            body()
            bench.add_(count, 1.0)
            test()

        bench.copy_(count, self.memory.zero)
        test()
        self.control.loop(flag, step, loop)
