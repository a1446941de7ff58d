"""What code that ran in a capture reads by name, of whatever it was given."""

from __future__ import annotations

import types
import weakref
from typing import Any

import torch
from torch import nn

from .code import is_library, looked_up, names_of, only_filled
from .fixed import is_constant
from .held import is_of_library
from .ran import Ran
from .search import LONG, OF_MODULES, WITHIN, Search, apart_of, is_filled

__all__ = ["Reading"]

ALL_PARTS = frozenset(
    {"children", "modules", "named_children", "named_modules", "_modules", "getattr", "__dict__"}
)
"""Names by which code finds parts of a module that it does not name."""


class Reading(Search):
    """A search that takes in functions which ran, whatever called them.

    Attributes:
        read: What code reads of modules' attributes, by their identity.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[int, set[str]] = {}
        self._reads: set[tuple[int, int]] = set()

    def ran(self, call: Ran) -> None:
        """What a function read that ran."""
        code, around, filled = call.code, call.globals, only_filled(call.code)
        for name in sorted(looked_up(code) & around.keys()):
            if not is_filled(name, around[name], filled):
                self._bind(f"global {name}", around, name)
                self._reads_of(around[name], name, code)
        for name, value in call.containers:
            if name not in filled:
                self._bind(name, {"": value}, "", key=id(value))
                self._reads_of(value, name, code)
        for name, value in call.given:
            self._method_of(value, call)
            self._reads_of(value, name, code)

    def _method_of(self, value: Any, call: Ran) -> None:
        """Notes the class that the function which ran is a method of, if it is one of ``value``."""
        kind, name = type(value), call.code.co_name
        for one in kind.__mro__:
            found = vars(one).get(name)
            if isinstance(found, types.FunctionType) and found.__code__ is call.code:
                self._bind(f"{one.__name__}.{name}", vars(one), name)

    def _reads_of(self, value: Any, name: str, code: types.CodeType, depth: int = WITHIN) -> None:
        """What code reads of a value, which it calls ``name``."""
        if (id(value), id(code)) in self._reads:
            return
        self._reads.add((id(value), id(code)))
        self._kept += (value, code)
        names = names_of(code)
        if isinstance(value, nn.Module):
            self._reads_of_module(value, name, code, depth)
        elif isinstance(value, list | tuple) and len(value) <= LONG:
            for place, one in enumerate(value):
                self._reads_of(one, f"{name}[{place}]", code, depth)
        elif isinstance(value, dict) and len(value) <= LONG:
            for key, one in list(value.items()):
                self._reads_of(one, f"{name}[{key!r}]", code, depth)
        elif isinstance(value, types.ModuleType | type):
            self._namespace(value, name, names)
        elif (
            depth
            and isinstance(attributes := getattr(value, "__dict__", None), dict)
            and not callable(getattr(value, "__code__", None))
            and not isinstance(value, torch.Tensor | types.FunctionType)
            and not is_of_library(value)
        ):
            self._namespace(type(value), type(value).__name__, names)
            for attribute in sorted((names & attributes.keys()) - apart_of(value)):
                if not is_filled(attribute, attributes[attribute], only_filled(code)):
                    self._bind(f"{name}.{attribute}", attributes, attribute)
                    self._reads_of(attributes[attribute], f"{name}.{attribute}", code, depth - 1)

    def _reads_of_module(
        self, module: nn.Module, name: str, code: types.CodeType, depth: int
    ) -> None:
        names = names_of(code)
        self.met.setdefault(id(module), (name, module))
        self.read.setdefault(id(module), set()).update(names)
        if not is_library(type(module).__module__):
            self._namespace_of(module, name, names)
        reference = weakref.ref(module)
        for attribute in sorted((names & vars(module).keys()) - OF_MODULES):
            value = vars(module)[attribute]
            if not is_constant(value) and not is_filled(attribute, value, only_filled(code)):
                called = f"{name}.{attribute}" if name else attribute
                self._attribute(module, reference, attribute, called)
                if depth:
                    self._reads_of(value, called, code, depth - 1)
        every = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        every = every or not ALL_PARTS.isdisjoint(names)
        for part, inner in module._modules.items():
            if inner is not None and (every or part in names):
                self._reads_of(inner, f"{name}.{part}", code, depth)

    def _namespace_of(self, module: nn.Module, name: str, names: frozenset[str]) -> None:
        """What code reads of a module that its class has, until the module gets its own."""
        for one in type(module).__mro__:
            if one.__module__.startswith("torch."):
                break
            for attribute in sorted((names & vars(one).keys()) - vars(module).keys()):
                value = vars(one)[attribute]
                if not callable(value) and not hasattr(value, "__get__"):
                    self._bind(f"{one.__name__}.{attribute}", vars(one), attribute)
