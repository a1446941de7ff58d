"""What code reads, and of what, as its instructions say."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = [
    "READ",
    "Reads",
    "looked_up",
    "names_of",
    "only_filled",
    "operands",
    "reads_of",
    "stored_by",
    "texts",
]

LOOKED_UP = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
READ = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
BY_TEXT = {"getattr", "hasattr", "attrgetter", "vars", "__dict__"}
"""What finds attributes by strings."""

IDLE = (
    *("CACHE", "PRECALL", "COPY_FREE_VARS", "PUSH_NULL", "EXTENDED_ARG", "NOP", "RESUME"),
    *("TO_BOOL", "NOT_TAKEN"),
)
BY_NAME = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF")
FILLING = frozenset(
    {"append", "appendleft", "extend", "add", "update", "insert"}
    | {"__setitem__", "clear", "remove", "discard"}
)
"""Methods that put something into a container or take it out, and tell nothing of it."""
TELLING = frozenset({"setdefault", "pop", "popleft"})
"""Those that return what is in it."""


class Reads(NamedTuple):
    """The attributes that code reads.

    Attributes:
        of: Those of what it finds under a name that it does not bind itself, however far in.
        loose: Those of anything else.
        counted: Those that it reads only to set them anew, by ``+=`` and the like.
        imported: What it takes from Python modules, by their names.
    """

    of: dict[str, frozenset[str]]
    loose: frozenset[str]
    counted: frozenset[str]
    imported: dict[str, frozenset[str]]

    @property
    def all(self) -> frozenset[str]:
        """Those of anything."""
        return self.loose.union(*self.of.values())

    def under(self, name: str | None) -> frozenset[str]:
        """Those that it may read of what it finds under a name, or otherwise where that is None."""
        return self.loose | self.of.get(name or "", frozenset())


@functools.lru_cache(maxsize=4096)
def reads_of(code: types.CodeType) -> Reads:
    """What code reads, with the functions defined in it."""
    of: dict[str, set[str]] = {}
    loose, counted, imported = set(texts(code)), set[str](), dict[str, set[str]]()
    for one in codes(code):
        steps = _steps(one)
        bound = {name for step in steps if "STORE_" in step.opname for name in _names(step)}
        if one is not code:
            bound.update(one.co_varnames)
        root, before, module = "", "", ""
        for step in steps:
            if step.opname in READ:
                if before == "COPY":  # Of an assignment like `+=`.
                    counted.add(step.argval)
                    root = ""
                else:
                    root = "" if step.is_jump_target else root
                    (of.setdefault(root, set()) if root else loose).add(step.argval)
            elif step.opname.startswith(BY_NAME):
                *_, root = _names(step)
                root = "" if root in bound else root
            else:
                root = ""
                if step.opname == "IMPORT_NAME":
                    module = step.argval
                    imported.setdefault(module, set())
                elif step.opname == "IMPORT_FROM":
                    imported[module].add(step.argval)
                elif step.opname == "MATCH_CLASS":
                    loose.update(_words(one.co_consts))
            before = step.opname
    return Reads(_frozen(of), frozenset(loose), frozenset(counted), _frozen(imported))


@functools.lru_cache(maxsize=4096)
def only_filled(code: types.CodeType) -> frozenset[str]:
    """The names under which code finds containers that it puts things into, and never looks at."""
    filled: set[str] = set()
    read: set[str] = set()
    for one in codes(code):
        steps = list(dis.get_instructions(one))
        for place, step in enumerate(steps):
            if step.opname.startswith("LOAD_") and not _calls(step):
                for name in _names(step)[-1:]:
                    (filled if _fills(steps[place + 1 :]) else read).add(name)
    return frozenset(filled - read)


class Stored(NamedTuple):
    """The variables that code binds.

    Attributes:
        only: Those that it never looks at.
        counted: Those that it looks at only to bind them anew, by ``+=`` and the like.
    """

    only: frozenset[str]
    counted: frozenset[str]


@functools.lru_cache(maxsize=4096)
def stored_by(code: types.CodeType) -> Stored:
    """The variables that code binds, and does not read."""
    loaded, counted, stored = set[str](), set[str](), set[str]()
    for one in codes(code):
        steps = _steps(one)
        for place, step in enumerate(steps):
            if step.opname.startswith("STORE_"):
                stored.update(_names(step))
            elif step.opname.startswith("LOAD_"):
                counts = any(
                    after.opname.startswith("STORE_") and after.argval == step.argval
                    for after in steps[place + 2 : place + 4]
                    if steps[place + 2].opname == "BINARY_OP"
                )
                (counted if counts else loaded).update(_names(step))
    return Stored(frozenset(stored - loaded - counted), frozenset((stored & counted) - loaded))


def _fills(after: list[dis.Instruction]) -> bool:
    """True if what was just loaded is only filled by what follows."""
    steps = [step for step in after[:16] if step.opname not in IDLE][:4]
    if not steps:
        return False
    if steps[0].opname in READ:
        return steps[0].argval in FILLING or (steps[0].argval in TELLING and _leaves_result(after))
    if not steps[0].opname.startswith("LOAD_"):
        return False
    names = [step.opname for step in steps[1:]]
    if names[:1] == ["STORE_SUBSCR"]:  # kept[key] = value
        return True
    if names[:1] == ["BINARY_SUBSCR"] or (names[:1] == ["BINARY_OP"] and steps[1].argrepr == "[]"):
        # kept[key].append(value)
        return len(steps) > 2 and steps[2].opname in READ and steps[2].argval in FILLING
    return names == ["COPY", "COPY", "BINARY_SUBSCR"]  # kept[key] += value


def _leaves_result(after: list[dis.Instruction]) -> bool:
    """True if what the method returns that is called next is dropped, or is only filled."""
    depth = 1  # What the method is of lies on top.
    for place, step in enumerate(after):
        depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth < 1:
            return False
        if depth == 1 and step.opname.startswith("CALL"):
            rest = [one for one in after[place + 1 : place + 6] if one.opname not in IDLE]
            if not rest:
                return False
            fills = rest[0].opname in READ and rest[0].argval in FILLING
            return fills or rest[0].opname == "POP_TOP"
    return False


def _calls(step: dis.Instruction) -> bool:
    """True for a method that is about to be called: no container has its name."""
    if step.opname == "LOAD_ATTR" and sys.version_info >= (3, 12):
        return bool((step.arg or 0) & 1)
    return step.opname in ("LOAD_METHOD", "LOAD_CONST")


def _steps(code: types.CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname not in IDLE]


def _names(step: dis.Instruction) -> list[str]:
    """The names of an instruction; some have two."""
    value: Any = step.argval
    return [one for one in (value if isinstance(value, tuple) else (value,)) if type(one) is str]


def _frozen(found: dict[str, set[str]]) -> dict[str, frozenset[str]]:
    return {name: frozenset(some) for name, some in found.items()}


@functools.lru_cache(maxsize=2048)
def names_of(code: types.CodeType) -> frozenset[str]:
    """The names that code knows, and that of the functions defined in it."""
    return frozenset(texts(code).union(*(one.co_names for one in codes(code))))


def looked_up(code: types.CodeType) -> set[str]:
    """The names that code, and that of the functions defined in it, look up as globals."""
    return operands(code, LOOKED_UP)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions defined in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from codes(one)


def texts(code: types.CodeType) -> set[str]:
    """The names among the strings of code, if it may find attributes by them."""
    return {
        word
        for one in codes(code)
        if not BY_TEXT.isdisjoint(one.co_names)
        for word in _words(one.co_consts)
    }


def _words(constants: tuple[Any, ...]) -> Iterator[str]:
    for one in constants:
        if isinstance(one, tuple | frozenset):
            yield from _words(tuple(one))
        elif isinstance(one, str):
            parts = one.split(".")
            if all(map(str.isidentifier, parts)):
                yield from parts


def operands(code: types.CodeType, operations: tuple[str, ...]) -> set[str]:
    """What these operations of code, and of the functions defined in it, work on."""
    return set().union(*(_operands(one, operations) for one in codes(code)))


@functools.lru_cache(maxsize=2048)
def _operands(code: types.CodeType, operations: tuple[str, ...]) -> frozenset[str]:
    """What these operations work on; kept, since many modules are of one class."""
    return frozenset(one.argval for one in dis.get_instructions(code) if one.opname in operations)
