"""What Python code mentions, and which functions it runs: read from its instructions.

Of a method every definition along the classes counts, since one may call the next by ``super()``.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

__all__ = [
    "Mentioned",
    "Mentions",
    "content",
    "globals_in",
    "is_library",
    "looked_up",
    "names_in",
    "names_of",
    "only_filled",
    "stored_in",
]

LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}
OWN = "tensorplay_"
LOOKED_UP = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
IDLE = ("CACHE", "PRECALL", "COPY_FREE_VARS", "PUSH_NULL")
READ = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
BY_TEXT = {"getattr", "hasattr", "attrgetter", "vars", "__dict__"}
"""What finds attributes by strings."""
FILLING = {"append", "extend", "add", "update", "appendleft"}
"""Methods that put something into a container, and look at nothing in it."""


class Mentioned:
    """What a method of an object mentions, with the methods and functions that it uses.

    Args:
        owner: The object, a module say.
        first: The method that runs first.
        own: Attributes of the object itself count, too, and not its class alone.

    Attributes:
        names: The names that their code knows.
        read: Those of attributes that it may look up, not only set.
        filled: Those of containers that it puts things into, and never looks at.
        functions: The methods, each once, and functions among the object's attributes.
    """

    def __init__(self, owner: object, first: str, *, own: bool = True) -> None:
        self.names: set[str] = set()
        self.read: set[str] = set()
        self.filled: set[str] = set()
        used: set[str] = set()
        self.functions: list[types.FunctionType] = []
        seen: set[int] = set()
        pending = [first]
        while pending:
            for function in _definitions(owner, pending.pop(), own=own):
                if id(function) in seen:
                    continue
                seen.add(id(function))
                self.functions.append(function)
                # A function that a method calls may be given the object, and read it.
                for one in (function, *_helpers(function)):
                    new = names_in(one) - self.names
                    self.names |= new
                    self.read |= _of(one.__code__, READ) | _texts(one.__code__)
                    self.filled |= only_filled(one.__code__)
                    used |= names_in(one) - only_filled(one.__code__)
                    pending += new
        self.filled -= used


class Mentions:
    """What methods mention, of many objects of few classes, at one moment."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, str], Mentioned] = {}

    def of(self, owner: object, first: str = "forward") -> Mentioned:
        """As ``Mentioned(owner, first)``."""
        key = type(owner), first
        if key not in self._known:
            self._known[key] = Mentioned(owner, first, own=False)
        known, attributes = self._known[key], getattr(owner, "__dict__", {})
        if any(callable(attributes[name]) for name in attributes.keys() & {first, *known.names}):
            return Mentioned(owner, first)
        return known


def names_in(function: Any) -> set[str]:
    """The names that the code of a function knows; none for what is no Python function."""
    code = getattr(function, "__code__", None)
    return set(names_of(code)) if isinstance(code, types.CodeType) else set()


@functools.lru_cache(maxsize=2048)
def names_of(code: types.CodeType) -> frozenset[str]:
    """The names that code knows, and that of the functions defined in it."""
    return frozenset(_texts(code).union(*(one.co_names for one in _codes(code))))


def globals_in(function: types.FunctionType) -> set[str]:
    """The names that a function, and those defined in it, look up as globals."""
    return looked_up(function.__code__)


def looked_up(code: types.CodeType) -> set[str]:
    """The names that code, and that of the functions defined in it, look up as globals."""
    return _of(code, LOOKED_UP)


@functools.lru_cache(maxsize=2048)
def only_filled(code: types.CodeType) -> frozenset[str]:
    """The names under which code finds containers that it puts things into, and never looks at."""
    filled: set[str] = set()
    read: set[str] = set()
    for one in _codes(code):
        found = [step for step in dis.get_instructions(one) if step.opname not in IDLE]
        for place, step in enumerate(found):
            if not step.opname.startswith("LOAD_") or not isinstance(step.argval, str):
                continue
            after = found[place + 1 : place + 3]
            fills = bool(after) and (
                after[-1].opname == "STORE_SUBSCR"
                or (after[0].opname in READ and after[0].argval in FILLING)
            )
            (filled if fills else read).add(step.argval)
    return frozenset(filled - read)


def stored_in(function: types.FunctionType) -> set[str]:
    """The globals that a function, and those defined in it, may bind."""
    return _of(function.__code__, ("STORE_GLOBAL",))


def is_library(module: str) -> bool:
    """True for code of libraries that keep nothing which a graph would miss."""
    top = module.partition(".")[0]
    return top in LIBRARIES or top.startswith(OWN)


def content(cell: types.CellType) -> Any:
    """What a closure's variable is bound to; None if to nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _definitions(owner: object, name: str, *, own: bool) -> Iterator[types.FunctionType]:
    """The Python functions that an object and its classes have under a name."""
    attributes = getattr(owner, "__dict__", {}) if own else {}
    for space in (attributes, *map(vars, type(owner).__mro__)):
        yield from _functions(space.get(name))


def _functions(value: object) -> Iterator[types.FunctionType]:
    if isinstance(value, property):
        yield from _functions(value.fget)
        yield from _functions(value.fset)
    elif isinstance(value, staticmethod | classmethod | types.MethodType):
        yield from _functions(value.__func__)
    elif isinstance(value, functools.partial | functools.partialmethod | functools.cached_property):
        yield from _functions(value.func)
    elif hasattr(value, "graphed") and hasattr(value, "original"):
        yield from _functions(value.original)
    elif isinstance(value, types.FunctionType):
        yield value
        # torch.no_grad() and the like wrap what they decorate.
        inner = inspect.unwrap(value)
        if inner is not value and isinstance(inner, types.FunctionType):
            yield inner


def _helpers(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """The functions that another finds among its globals and, decorators say, in its closure."""
    if is_library(function.__module__ or ""):
        return
    around = function.__globals__
    found = [around[name] for name in globals_in(function) & around.keys()]
    found += map(content, function.__closure__ or ())
    for one in found:
        if isinstance(one, types.FunctionType) and not is_library(one.__module__ or ""):
            yield inspect.unwrap(one)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions defined in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _texts(code: types.CodeType) -> set[str]:
    """The names among the strings of code, if it may find attributes by them."""
    return {
        word
        for one in _codes(code)
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


def _of(code: types.CodeType, operations: tuple[str, ...]) -> set[str]:
    return set().union(*(_operands(one, operations) for one in _codes(code)))


@functools.lru_cache(maxsize=2048)
def _operands(code: types.CodeType, operations: tuple[str, ...]) -> frozenset[str]:
    """What these operations work on; kept, since many modules are of one class."""
    return frozenset(one.argval for one in dis.get_instructions(code) if one.opname in operations)
