"""The modules that a callable runs: itself, or those in its closure, its globals and its arguments.

Their parameters, buffers, modes and hooks are what a graph depends on beside its inputs. What is
not found here is not lost: a tensor that requires grad is met again in the autograd graph.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["Reached", "compile_contexts"]

DEPTH = 3
"""How many functions that call functions are followed."""
LONG = 1000
"""A longer list is data, not a list of modules."""


class Reached:
    """The modules that ``function`` runs.

    Args:
        function: A module or any other callable.

    Attributes:
        roots: Those found first, not as parts of others, with what they are called.
        modules: All of them, each once, by path.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, nn.Module):
            self.roots: dict[str, nn.Module] = {"": function}
        else:
            self.roots = _outermost(_search(function, "", DEPTH, set()))
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


def _search(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        yield name or type(value).__name__, value
    elif isinstance(value, list | tuple) and len(value) <= LONG:
        for place, one in enumerate(value):
            yield from _search(one, f"{name}[{place}]", depth, seen)
    elif isinstance(value, dict) and len(value) <= LONG:
        for key, one in value.items():
            yield from _search(one, f"{name}[{key!r}]", depth, seen)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield from _search(part, name, depth, seen)
    elif isinstance(value, types.MethodType):
        yield from _search(value.__func__, name, depth, seen)
        yield from _owned(value.__self__, "self", depth, seen)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, depth, seen)
    elif callable(value) and not isinstance(value, type | types.BuiltinFunctionType):
        yield from _owned(value, name or type(value).__name__, depth, seen)


def _owned(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """What an object that is no module holds."""
    if isinstance(value, nn.Module):
        yield from _search(value, name, depth, seen)
    elif depth:
        for attribute, one in getattr(value, "__dict__", {}).items():
            yield from _search(one, f"{name}.{attribute}", depth - 1, seen)


def _function(
    function: types.FunctionType, depth: int, seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    original = getattr(function, "_torchdynamo_orig_callable", None)
    if original is not None:
        yield from _search(original, "", depth, seen)
        return
    if not depth or function.__module__.partition(".")[0] == "torch":
        return
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = [(name, _content(cell)) for name, cell in closure]
    names = _names(function.__code__)
    values += [(name, function.__globals__[name]) for name in names & function.__globals__.keys()]
    values += [("", function.__defaults__), ("", function.__kwdefaults__)]
    for name, value in sorted(values, key=lambda pair: pair[0]):
        yield from _search(value, name, depth - 1, seen)


def _names(code: types.CodeType) -> set[str]:
    """The globals that a function and those defined in it may read."""
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
