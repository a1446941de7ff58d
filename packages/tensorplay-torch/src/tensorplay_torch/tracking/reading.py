"""What code that ran in a capture reads by name, of whatever it was given."""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any, NamedTuple

from torch import nn

from .code import is_library
from .fixed import is_constant
from .held import is_filled
from .instructions import looked_up, only_filled, reads_of
from .kinds import apart_of, attributes_of, is_module, is_of_users, items_of, tensors_among
from .ran import Ran
from .search import OF_MODULES, WITHIN, Search

__all__ = ["Reading"]

LONG = 256
"""A longer container is data."""
NESTED = 4
"""How many containers in one another are looked into."""
ALL_PARTS = frozenset(
    {"children", "modules", "named_children", "named_modules", "_modules", "getattr", "__dict__"}
)
"""Names by which code finds parts of a module that it does not name."""


class Sight(NamedTuple):
    """What code sees of one thing that it was given.

    Attributes:
        names: Of attributes that it reads.
        counted: Of those that it reads only to set them anew: tensors are written where they are.
        filled: Of containers that it only fills.
        key: The same for the same code and thing.
    """

    names: frozenset[str]
    counted: frozenset[str]
    filled: frozenset[str]
    key: tuple[int, str]


class Reading(Search):
    """A search that takes in functions which ran, whatever called them.

    Attributes:
        read: What code reads of modules' attributes, by their identity.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[int, set[str]] = {}
        self._reads: set[tuple[int, tuple[int, str]]] = set()
        self._sights: dict[tuple[int, str], Sight] = {}
        self._methods: dict[type, dict[types.CodeType, list[str]]] = {}

    def ran(self, call: Ran) -> None:
        """What a function read that ran."""
        code, around, filled = call.code, call.globals, only_filled(call.code)
        for name in sorted(looked_up(code) & around.keys()):
            if not is_filled(name, around[name], filled):
                self._bind(f"global {name}", around, name)
                self._reads_of(around[name], name, self._sight(code, name))
        for name, value in call.given:
            self._method_of(value, code)
            self._reads_of(value, name, self._sight(code, name))
        package = str(around.get("__package__") or "")
        for name, attributes in reads_of(code).imported.items():
            for absolute in dict.fromkeys((name, f"{package}.{name}")):
                module = sys.modules.get(absolute)
                if module is not None and not is_library(absolute):
                    seen = self._sight(code, name)
                    self._namespace(module, name, seen.names | attributes)

    def _sight(self, code: types.CodeType, name: str) -> Sight:
        key = id(code), name
        if key not in self._sights:
            self._kept.append(code)
            read = reads_of(code)
            self._sights[key] = Sight(read.under(name), read.counted, only_filled(code), key)
        return self._sights[key]

    def _method_of(self, value: Any, code: types.CodeType) -> None:
        """Binds that code where classes of ``value`` have it: another may be put in its place."""
        for one in type(value).__mro__:
            if one not in self._methods:
                self._methods[one] = _codes_of(one)
            for name in self._methods[one].get(code, ()):
                self._bind(f"{one.__name__}.{name}", vars(one), name)

    def _reads_of(
        self, value: Any, name: str, seen: Sight, depth: int = WITHIN, nested: int = NESTED
    ) -> None:
        """What code reads of a value, which it calls ``name``."""
        if (id(value), seen.key) in self._reads:
            return
        self._reads.add((id(value), seen.key))
        self._kept.append(value)
        if is_module(value):
            self._reads_of_module(value, name, seen, depth)
        elif issubclass(type(value), types.ModuleType | type):
            self._namespace(value, name, seen.names)
        elif is_of_users(value):
            if depth:
                self._reads_of_object(value, name, seen, depth)
        elif nested:
            for place, one in items_of(value, LONG):
                self._reads_of(one, f"{name}{place}", seen, depth, nested - 1)

    def _reads_of_object(self, value: Any, name: str, seen: Sight, depth: int) -> None:
        attributes = attributes_of(value) or {}
        self._namespace(type(value), type(value).__name__, seen.names)
        self._functions_of(type(value), seen.names)
        names = (seen.names | tensors_among(value, seen.counted)) & attributes.keys()
        for attribute in sorted(names - apart_of(value)):
            if not is_filled(attribute, attributes[attribute], seen.filled):
                self._bind(f"{name}.{attribute}", attributes, attribute)
                self._reads_of(attributes[attribute], f"{name}.{attribute}", seen, depth - 1)

    def _reads_of_module(self, module: nn.Module, name: str, seen: Sight, depth: int) -> None:
        self.met.setdefault(id(module), (name, module))
        self.read.setdefault(id(module), set()).update(seen.names)
        if not is_library(type(module).__module__):
            self._namespace_of(module, seen.names)
            self._functions_of(type(module), seen.names)
        reference = weakref.ref(module)
        names = (seen.names | tensors_among(module, seen.counted)) & vars(module).keys()
        for attribute in sorted(names - OF_MODULES):
            value = vars(module)[attribute]
            if not is_constant(value) and not is_filled(attribute, value, seen.filled):
                called = f"{name}.{attribute}" if name else attribute
                self._attribute(module, reference, attribute, called)
                if depth:
                    self._reads_of(value, called, seen, depth - 1)
        every = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        every = every or not ALL_PARTS.isdisjoint(seen.names)
        for part, inner in module._modules.items():
            if inner is not None and (every or part in seen.names):
                self._reads_of(inner, f"{name}.{part}", seen, depth)

    def _namespace_of(self, module: nn.Module, names: frozenset[str]) -> None:
        """What code reads of a module that its class has, until the module gets its own."""
        for one in type(module).__mro__:
            if one.__module__.startswith("torch."):
                break
            for attribute in sorted((names & vars(one).keys()) - vars(module).keys()):
                value = vars(one)[attribute]
                if not callable(value) and not hasattr(value, "__get__"):
                    self._bind(f"{one.__name__}.{attribute}", vars(one), attribute)

    def _functions_of(self, kind: type, names: frozenset[str]) -> None:
        """Binds what code calls of a class: another may be put in its place."""
        for one in kind.__mro__:
            if one not in self._methods:
                self._methods[one] = _codes_of(one)
            methods = {name for some in self._methods[one].values() for name in some}
            for name in sorted(methods & names):
                self._bind(f"{one.__name__}.{name}", vars(one), name)


def _codes_of(kind: type) -> dict[types.CodeType, list[str]]:
    """Under which names a user's class has which code: plain, wrapped, static, of a property."""
    found: dict[types.CodeType, list[str]] = {}
    if is_library(str(kind.__module__)):
        return found
    for name, value in vars(kind).items():
        pending = [value]
        while pending:
            one = pending.pop()
            if isinstance(one, property):
                pending += [one.fget, one.fset]
            elif isinstance(one, staticmethod | classmethod):
                pending.append(one.__func__)
            elif isinstance(one, types.FunctionType):
                found.setdefault(one.__code__, []).append(name)
                pending.append(getattr(one, "__wrapped__", None))
    return found
