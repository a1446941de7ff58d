"""What a callable runs and reads: modules, and the values that its code finds by name.

For a function these are in its closure, its globals, its defaults and the object it is bound to.
What is not found here is not lost: a tensor that requires grad is met again in the autograd graph.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from .fixed import is_constant

__all__ = ["Binding", "Reached", "compile_contexts", "names_in"]

DEPTH = 3
"""How many functions that call functions are followed."""
LONG = 1000
"""A longer list is data, not a list of modules."""


class Binding(NamedTuple):
    """A value that code finds by name."""

    name: str
    read: Callable[[], Any]
    """Finds what is bound now; None if nothing is."""
    value: Any
    """What was bound."""


class Reached:
    """What ``function`` runs and reads.

    Args:
        function: A module or any other callable.

    Attributes:
        roots: The modules found first, not as parts of others, with what they are called.
        modules: All modules, each once, by path.
        bindings: Tensors, modules and constants that the code of functions reads.
        owners: Objects, beside modules, whose methods are run, by what they are called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.bindings: list[Binding] = []
        self.owners: dict[str, object] = {}
        if isinstance(function, nn.Module):
            self.roots: dict[str, nn.Module] = {"": function}
        else:
            search = _Search()
            self.roots = _outermost(search.of(function, "", DEPTH))
            self.bindings, self.owners = search.bindings, search.owners
        self.modules: dict[str, nn.Module] = {}
        seen: set[int] = set()
        for name, root in self.roots.items():
            for path, module in root.named_modules(prefix=name):
                if id(module) not in seen:
                    seen.add(id(module))
                    self.modules[path] = module

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter once, by path."""
        yield from self._tensors("_parameters")

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every buffer once, by path."""
        yield from self._tensors("_buffers")

    def _tensors(self, kind: str) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self.modules.items():
            for name, tensor in vars(module)[kind].items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{path}.{name}" if path else name, tensor


class _Search:
    """Follows a function to what it runs and reads."""

    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        self.owners: dict[str, object] = {}
        self._seen: set[int] = set()

    def of(self, value: Any, name: str, depth: int) -> Iterator[tuple[str, nn.Module]]:
        """The modules that ``value``, called ``name``, is, holds or runs."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, nn.Module):
            yield name or type(value).__name__, value
        elif isinstance(value, list | tuple) and len(value) <= LONG:
            for place, one in enumerate(value):
                yield from self.of(one, f"{name}[{place}]", depth)
        elif isinstance(value, dict) and len(value) <= LONG:
            for key, one in value.items():
                yield from self.of(one, f"{name}[{key!r}]", depth)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                yield from self.of(part, name, depth)
        elif isinstance(value, types.MethodType):
            yield from self.of(value.__func__, name, depth)
            yield from self._owner(value.__self__, "self", names_in(value.__func__), depth)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value, depth)
        elif callable(value) and not isinstance(value, type | types.BuiltinFunctionType):
            names = names_in(vars(type(value)).get("__call__"))
            yield from self._owner(value, name or type(value).__name__, names, depth)

    def _owner(
        self, value: Any, name: str, names: set[str], depth: int
    ) -> Iterator[tuple[str, nn.Module]]:
        """What an object holds that code reads which knows these ``names``."""
        if isinstance(value, nn.Module):
            yield from self.of(value, name, depth)
        elif depth and isinstance(attributes := getattr(value, "__dict__", None), dict):
            self.owners.setdefault(name, value)
            for attribute, one in list(attributes.items()):
                if attribute in names:
                    read = functools.partial(attributes.get, attribute)
                    self._bind(f"{name}.{attribute}", read, one)
                yield from self.of(one, f"{name}.{attribute}", depth - 1)

    def _function(
        self, function: types.FunctionType, depth: int
    ) -> Iterator[tuple[str, nn.Module]]:
        original = getattr(function, "_torchdynamo_orig_callable", None)
        if original is not None:
            yield from self.of(original, "", depth)
            return
        if not depth or function.__module__.partition(".")[0] == "torch":
            return
        found: list[tuple[str, Any]] = []
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            found.append((name, _content(cell)))
            self._bind(name, functools.partial(_content, cell), found[-1][1])
        for name in sorted(_names(function.__code__) & function.__globals__.keys()):
            found.append((name, function.__globals__[name]))
            read = functools.partial(function.__globals__.get, name)
            self._bind(f"global {name}", read, found[-1][1])
        found += [("", function.__defaults__), ("", function.__kwdefaults__)]
        for name, value in found:
            yield from self.of(value, name, depth - 1)

    def _bind(self, name: str, read: Callable[[], Any], value: Any) -> None:
        if is_constant(value) or isinstance(value, torch.Tensor | nn.Module):
            self.bindings.append(Binding(name, read, value))


def names_in(function: Any) -> set[str]:
    """The names that the code of a function knows; none for what is no Python function."""
    code = getattr(function, "__code__", None)
    return _names(code) if isinstance(code, types.CodeType) else set()


def compile_contexts(function: object, modules: Iterable[nn.Module]) -> Iterator[Any]:
    """The contexts by which ``torch.compile`` runs ``function`` or any of ``modules``."""
    for one in (function, *modules):
        compiled = one if not isinstance(one, nn.Module) else getattr(one, "dynamo_ctx", None)
        if compiled is None:
            compiled = getattr(one, "_compiled_call_impl", None)
        if isinstance(compiled, types.FunctionType):
            for cell in compiled.__closure__ or ():
                if hasattr(content := _content(cell), "compiler_config"):
                    yield content
        elif hasattr(compiled, "compiler_config"):
            yield compiled


def _names(code: types.CodeType) -> set[str]:
    """The globals and attributes that a function, and those defined in it, may read."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*inner)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Not assigned yet.
        return None


def _outermost(found: Iterable[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    pairs = list(found)
    inner = {id(part) for _, module in pairs for part in module.modules() if part is not module}
    roots: dict[str, nn.Module] = {}
    for name, module in pairs:
        if id(module) not in inner:
            # Two closures may call different modules by one name.
            roots[name if name not in roots else f"{name}#{len(roots)}"] = module
    return roots
