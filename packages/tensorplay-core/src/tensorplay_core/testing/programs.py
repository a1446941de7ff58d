"""Programs as data: straight-line work, forks, branches, loops and switches on named buffers.

A program works on float32 registers of one length, Bool flags and int32 indices. It says what
happens, not how: ``interpreter`` runs one eagerly or captures it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

__all__ = [
    "Add",
    "Block",
    "Copy",
    "Double",
    "Drop",
    "Fork",
    "If",
    "Illegal",
    "Inputs",
    "Less",
    "Literal",
    "Program",
    "Raise",
    "Statement",
    "Switch",
    "While",
    "inner_blocks",
    "walk",
    "with_inner_blocks",
]

Inputs: TypeAlias = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Literal:
    """A buffer that lives only while the program is issued: a graph must own it to replay."""

    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """``target[:] = source``."""

    target: str
    source: str | Literal


@dataclass(frozen=True, slots=True)
class Add:
    """``target += source``, in place; a float is a constant."""

    target: str
    source: str | Literal | float


@dataclass(frozen=True, slots=True)
class Double:
    """``target = source * 2``, a fresh buffer; in a body it is gone when the body ends."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Forgets a fresh buffer, so that its memory may be used again."""

    target: str


@dataclass(frozen=True, slots=True)
class Less:
    """``flag = first[0] < second[0]``."""

    flag: str
    first: str
    second: str | float


@dataclass(frozen=True, slots=True)
class Fork:
    """``side`` on a stream of its own beside ``main``, then joined. No written buffer is shared."""

    side: Block
    main: Block


@dataclass(frozen=True, slots=True)
class If:
    """``then`` if the flag is set, else ``other``."""

    flag: str
    then: Block
    other: Block | None = None


@dataclass(frozen=True, slots=True)
class While:
    """``body`` while a counter, which the loop itself counts, is below ``limit``.

    Its counter and its flag are buffers named ``<name>.count`` and ``<name>.flag``. ``explicit``
    samples the flag at the end of the body by hand instead of leaving it to the end of the body.
    """

    name: str
    limit: str | float
    body: Block
    first: bool = False
    max_steps: int | None = 6
    explicit: bool = False


@dataclass(frozen=True, slots=True)
class Switch:
    """``cases[index]``, nothing if the index is out of range."""

    index: str
    cases: tuple[Block, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Raise:
    """The user's code fails here with this very exception."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Illegal:
    """What a capture must refuse."""


Statement: TypeAlias = (
    Copy | Add | Double | Drop | Less | Fork | If | While | Switch | Raise | Illegal
)
Block: TypeAlias = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """Statements and the buffers they start from.

    Attributes:
        length: Elements of each float register.
        registers: Names of float registers; ``flags``, ``indices``: of the others.
    """

    block: Block
    length: int = 3
    registers: tuple[str, ...] = ("a", "b", "c")
    flags: tuple[str, ...] = ("p", "q")
    indices: tuple[str, ...] = ("i",)


def walk(block: Block) -> Iterator[Statement]:
    """Yields every statement, those of inner blocks after the one that holds them."""
    for statement in block:
        yield statement
        for inner in inner_blocks(statement):
            yield from walk(inner)


def inner_blocks(statement: Statement) -> tuple[Block, ...]:
    """The blocks that a statement holds, in the order of its fields."""
    match statement:
        case If(then=then, other=other):
            return (then, other or ())
        case While(body=body):
            return (body,)
        case Switch(cases=cases):
            return cases
        case Fork(side=side, main=main):
            return (side, main)
    return ()


def with_inner_blocks(statement: Statement, blocks: Sequence[Block]) -> Statement:
    """The same statement over other blocks, as many as ``inner_blocks`` gives."""
    match statement:
        case If():
            return replace(statement, then=blocks[0], other=blocks[1])
        case While():
            return replace(statement, body=blocks[0])
        case Switch():
            return replace(statement, cases=tuple(blocks))
        case Fork():
            return Fork(*blocks)
    return statement
