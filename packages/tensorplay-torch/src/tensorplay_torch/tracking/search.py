"""Follows functions and objects to the modules that they run, and to what they read by name."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from .code import (
    Mentions,
    content,
    globals_in,
    is_library,
    names_in,
    stored_in,
)
from .fixed import is_constant
from .held import CONTAINERS, is_filled, is_of_library, is_plain_object
from .instructions import only_filled, stored_by
from .kinds import (
    apart_of,
    attributes_of,
    is_graphed,
    is_module,
    is_tensor,
    items_of,
    tensors_among,
)
from .names import MISSING, Place

__all__ = ["Binding", "Search"]

DEPTH = 3
"""How many functions that call functions are followed."""
WITHIN = 2
"""How many objects in one another are followed from a module's attributes."""
LONG = 1000
"""A longer list is data, not a list of modules."""
NESTED = 8
"""How many containers in one another are looked into."""
OF_MODULES = frozenset(vars(nn.Module()))
HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)


class Binding(NamedTuple):
    """A value that code finds by name."""

    name: str
    read: Callable[[], Any]
    """Finds what is bound now; None if nothing is."""
    value: Any
    """What was bound."""


class Search:
    """Follows functions to what they run and read.

    Attributes:
        bindings: Values that their code finds by name.
        places: Where it may keep something.
        owners: Objects, beside modules, that it uses, by what they are called.
        met: Modules that they reach, with what they are called, by identity.
    """

    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        self.places: list[Place] = []
        self.owners: dict[str, object] = {}
        self.met: dict[int, tuple[str, nn.Module]] = {}
        self._mentions = Mentions()
        self._of_kinds: dict[tuple[type, int], list[tuple[str, Any]]] = {}
        self._bound: set[tuple[int, str]] = set()
        self._seen: set[int] = set()
        # As long as they are kept, no other object gets their identity.
        self._kept: list[Any] = []

    def of(
        self,
        value: Any,
        name: str,
        depth: int,
        names: Collection[str] = (),
        *,
        strict: bool = False,
        nested: int = NESTED,
    ) -> Iterator[tuple[str, nn.Module]]:
        """The modules that ``value``, called ``name``, is, holds or runs.

        Args:
            value: Anything.
            name: What errors call it.
            depth: How many functions and objects are followed from here.
            names: Those that the code knows which reads it.
            strict: Of objects only attributes that it knows are followed.
            nested: How many containers in one another are looked into.
        """
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._kept.append(value)
        # By its type alone: to ask a proxy for its class would evaluate it.
        kind = type(value)
        if is_module(value):
            self.met.setdefault(id(value), (name or type(value).__name__, value))
            yield name or type(value).__name__, value
        elif issubclass(kind, list | tuple | dict):
            for place, one in items_of(value, LONG) if nested else ():
                yield from self.of(
                    one, f"{name}{place}", depth, names, strict=strict, nested=nested - 1
                )
        elif issubclass(kind, functools.partial):
            yield from self.of(value.func, name, depth, names)
            for part in (value.args, value.keywords):
                self._given(part, "a partial's argument")
                self._given((part,), "a partial's arguments")
                yield from self.of(part, name, depth, {*names, *names_in(value.func)})
        elif issubclass(kind, types.MethodType):
            yield from self.of(value.__func__, name, depth)
            yield from self._method(value.__self__, "self", value.__func__.__name__, depth)
        elif issubclass(kind, types.FunctionType):
            yield from self._function(value, depth)
        elif issubclass(kind, types.ModuleType | type):
            self._namespace(value, name, names)
        elif is_graphed(value):
            # A graphed callable: its graphs come and go, and what it stands for stays.
            yield from self.of(value.original, name, depth)
        elif is_plain_object(value):
            yield from self._owner(value, name, names, depth, strict=strict)
        elif callable(value) and not issubclass(kind, types.BuiltinFunctionType):
            yield from self._method(value, name or type(value).__name__, "__call__", depth)

    def into(self, module: nn.Module, path: str) -> None:
        """What the methods of a module read and keep, beside its parts and parameters."""
        kind = type(module)
        for hook in [one for attribute in HOOKS for one in vars(module)[attribute].values()]:
            list(self.of(hook, "a hook", DEPTH))
        if is_library(kind.__module__):
            return
        mentioned = self._mentions.of(module)
        names = mentioned.names
        for function in mentioned.functions:
            list(self.of(function, "", DEPTH))
        reference = weakref.ref(module)
        for attribute, value in self._constants(kind, names):
            if attribute not in vars(module):
                # Of the class, until the module gets its own.
                read = functools.partial(_looked_up, reference, attribute)
                name = f"{path}.{attribute}" if path else attribute
                self.bindings.append(Binding(name, read, value))
        for attribute, value in list(vars(module).items()):
            if is_filled(attribute, value, mentioned.filled):
                continue
            if attribute in names and attribute not in OF_MODULES and not is_constant(value):
                name = f"{path}.{attribute}" if path else attribute
                self._attribute(module, reference, attribute, name)
                list(self.of(value, name, WITHIN, names, strict=True))

    def _constants(self, kind: type, names: set[str]) -> list[tuple[str, Any]]:
        """The constants of a class among names, which many objects share."""
        known = self._of_kinds.get((kind, id(names)))
        if known is None:
            self._kept.append(names)
            found = ((one, inspect.getattr_static(kind, one, None)) for one in sorted(names))
            known = self._of_kinds[kind, id(names)] = [
                (attribute, value)
                for attribute, value in found
                if attribute not in OF_MODULES
                and value is not None
                and is_constant(value)
                and not callable(value)
            ]
        return known

    def _attribute(
        self, module: nn.Module, reference: weakref.ref[nn.Module], attribute: str, name: str
    ) -> None:
        """Binds an attribute of a module, once."""
        if (key := (id(module), attribute)) not in self._bound:
            self._bound.add(key)
            read = functools.partial(_attribute, reference, attribute)
            self.bindings.append(Binding(name, read, vars(module)[attribute]))

    def _method(
        self, owner: Any, name: str, method: str, depth: int
    ) -> Iterator[tuple[str, nn.Module]]:
        """What a method of an object runs and reads; of a module ``into`` says that."""
        names, filled = set[str](), set[str]()
        if not is_module(owner):
            mentioned = self._mentions.of(owner, method)
            filled = mentioned.filled
            names = mentioned.seen | tensors_among(owner, mentioned.counted)
            for function in mentioned.functions:
                yield from self.of(function, "", depth)
        yield from self._owner(owner, name, names, depth, filled=filled)

    def _owner(
        self,
        value: Any,
        name: str,
        names: Collection[str],
        depth: int,
        *,
        strict: bool = False,
        filled: Collection[str] = (),
    ) -> Iterator[tuple[str, nn.Module]]:
        """What an object holds that code reads which knows these ``names``."""
        if is_module(value):
            yield from self.of(value, name, depth)
        elif issubclass(type(value), type):
            self._namespace(value, name, names)
        elif depth and (attributes := attributes_of(value)) is not None:
            if is_of_library(value):
                return
            self.owners.setdefault(name, value)
            self._namespace(type(value), type(value).__name__, names)
            apart = apart_of(value)
            for attribute, one in list(attributes.items()):
                if attribute in apart or is_graphed(one):
                    continue
                if is_filled(attribute, one, filled):
                    continue
                if attribute in names:
                    self._bind(f"{name}.{attribute}", attributes, attribute)
                elif strict:
                    continue
                yield from self.of(one, f"{name}.{attribute}", depth - 1, names, strict=strict)

    def _namespace(self, value: Any, name: str, names: Collection[str]) -> None:
        """What code reads of a Python module or a class, and may set there."""
        if is_library(value.__name__ if isinstance(value, types.ModuleType) else value.__module__):
            return
        if isinstance(value, type):
            for base in value.__bases__:
                self._namespace(base, base.__name__, set(names) - vars(value).keys())
        for attribute in sorted(names & vars(value).keys() - {"__init__"}):
            found = vars(value)[attribute]
            if isinstance(found, types.FunctionType) and isinstance(value, types.ModuleType):
                self._bind(f"{name}.{attribute}", vars(value), attribute)
            elif not callable(found) and not hasattr(found, "__get__"):
                self._bind(f"{name}.{attribute}", vars(value), attribute)
                self.places.append(
                    Place(
                        f"{name}.{attribute}",
                        functools.partial(vars(value).get, attribute, MISSING),
                        functools.partial(setattr, value, attribute),
                    )
                )

    def _function(
        self, function: types.FunctionType, depth: int
    ) -> Iterator[tuple[str, nn.Module]]:
        original = getattr(function, "_torchdynamo_orig_callable", None)
        if original is not None:
            yield from self.of(original, "", depth)
            return
        if is_graphed(function):
            yield from self.of(vars(function)["original"], "", depth)
            return
        if not depth or is_library(function.__module__ or ""):
            return
        code, around = function.__code__, function.__globals__
        names, looked_up = names_in(function), globals_in(function) & around.keys()
        found: list[tuple[str, Any]] = []
        filled, stored = only_filled(code), stored_by(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            found.append((name, content(cell)))
            read = functools.partial(content, cell)
            # A tensor that is counted on is written where it is.
            counted = name in stored.counted and not is_tensor(found[-1][1])
            if not (counted or name in stored.only or is_filled(name, found[-1][1], filled)):
                self.bindings.append(Binding(name, read, found[-1][1]))
            self.places.append(Place(name, read, functools.partial(_fill, cell)))
        for name in sorted(looked_up):
            found.append((name, around[name]))
            if not is_filled(name, around[name], filled):
                self._bind(f"global {name}", around, name)
        for name in sorted(looked_up | stored_in(function)):
            self.places.append(
                Place(
                    f"global {name}",
                    functools.partial(around.get, name, MISSING),
                    functools.partial(_put, around, name),
                )
            )
        if function.__defaults__:
            read = functools.partial(getattr, function, "__defaults__")
            name = f"the defaults of {function.__name__}"
            self.bindings.append(Binding(name, read, function.__defaults__))
        for defaults in (function.__defaults__, function.__kwdefaults__):
            found.append(("", defaults))
            self._given(defaults, "a default")
            self.places.append(Place("a default", functools.partial(_itself, defaults), None))
        for name, value in found:
            yield from self.of(value, name, depth - 1, names)

    def _given(self, values: Any, name: str) -> None:
        """What stands ready for the arguments of a function: of that, what may change in place."""
        pairs = values.items() if isinstance(values, dict) else enumerate(values or ())
        for key, value in pairs:
            if issubclass(type(value), (*CONTAINERS, torch.Tensor)):
                self._bind(f"{name} [{key!r}]", {"": value}, "")

    def _bind(
        self, name: str, mapping: Mapping[str, Any], attribute: str, *, key: int | None = None
    ) -> None:
        """Binds an entry of a mapping, once."""
        once = (id(mapping) if key is None else key), attribute
        if once not in self._bound:
            self._bound.add(once)
            # As long as it is kept, no other gets its identity.
            self._kept.append(mapping)
            read = functools.partial(mapping.get, attribute)
            self.bindings.append(Binding(name, read, mapping[attribute]))


def _fill(cell: types.CellType, value: Any) -> None:
    cell.cell_contents = value


def _put(mapping: dict[str, Any], key: str, value: Any) -> None:
    if value is MISSING:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def _itself(value: Any) -> Any:
    return value


def _looked_up(reference: weakref.ref[nn.Module], name: str) -> Any:
    return getattr(reference(), name, None)


def _attribute(reference: weakref.ref[nn.Module], name: str) -> Any:
    module = reference()
    return None if module is None else vars(module).get(name)
