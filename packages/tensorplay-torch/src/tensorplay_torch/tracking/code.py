"""What Python code mentions, and which functions it runs: read from its instructions.

Of a method every definition along the classes counts, since one may call the next by ``super()``.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from .instructions import READ, looked_up, names_of, only_filled, operands, reads_of, texts
from .kinds import is_graphed

__all__ = [
    "Mentioned",
    "Mentions",
    "content",
    "globals_in",
    "is_library",
    "names_in",
    "stored_in",
]

LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}
OWN = "tensorplay_"


class Mentioned:
    """What a method of an object mentions, with the methods and functions that it uses.

    Args:
        owner: The object, a module say.
        first: The method that runs first.
        own: Attributes of the object itself count, too, and not its class alone.

    Attributes:
        names: The names that their code knows.
        read: Those of attributes that it may look up, not only set.
        seen: Those of attributes that may be read of the object itself.
        counted: Those that are read only to set them anew.
        filled: Those of containers that it puts things into, and never looks at.
        functions: The methods, each once, and functions among the object's attributes.
    """

    def __init__(self, owner: object, first: str, *, own: bool = True) -> None:
        self.names: set[str] = set()
        self.read: set[str] = set()
        self.seen: set[str] = set()
        self.counted: set[str] = set()
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
                self.seen |= reads_of(function.__code__).under(_first(function))
                # A function that a method calls may be given the object, and read it.
                for one in _helpers(function):
                    self.seen |= reads_of(one.__code__).all
                for one in (function, *_helpers(function)):
                    self.counted |= reads_of(one.__code__).counted
                    new = names_in(one) - self.names
                    self.names |= new
                    self.read |= operands(one.__code__, READ) | texts(one.__code__)
                    self.filled |= only_filled(one.__code__)
                    used |= names_in(one) - only_filled(one.__code__)
                    pending += new
        self.filled -= used


def _first(function: types.FunctionType) -> str | None:
    """What a method calls its object."""
    code = function.__code__
    return code.co_varnames[0] if code.co_argcount else None


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


def globals_in(function: types.FunctionType) -> set[str]:
    """The names that a function, and those defined in it, look up as globals."""
    return looked_up(function.__code__)


def stored_in(function: types.FunctionType) -> set[str]:
    """The globals that a function, and those defined in it, may bind."""
    return operands(function.__code__, ("STORE_GLOBAL",))


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


def _functions(value: Any) -> Iterator[types.FunctionType]:
    if isinstance(value, property):
        yield from _functions(value.fget)
        yield from _functions(value.fset)
    elif isinstance(value, staticmethod | classmethod | types.MethodType):
        yield from _functions(value.__func__)
    elif isinstance(value, functools.partial | functools.partialmethod | functools.cached_property):
        yield from _functions(value.func)
    elif is_graphed(value):
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
