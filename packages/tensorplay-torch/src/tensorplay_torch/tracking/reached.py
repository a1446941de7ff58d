"""What a callable runs and reads: modules, and the values that its code finds by name.

For a function these are in its closure, its globals, its defaults and the object it is bound to.
What is not found here is not lost: a tensor that requires grad is met again in the autograd graph.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .code import content
from .ran import Ran
from .reading import Reading
from .search import DEPTH, Binding

__all__ = ["Binding", "Reached", "compile_contexts"]


class Reached:
    """What ``function`` runs and reads.

    Args:
        function: A module or any other callable.
        ran: Functions of its that ran, which are to be taken in.

    Attributes:
        roots: The modules found first, not as parts of others, with what they are called.
        hidden: Modules that are no registered parts of those: in a list, say.
        modules: All modules, each once, by path.
        bindings: What the code of functions and of modules' methods reads by name.
        places: Where that code may keep something.
        owners: Objects, beside modules, that it uses, by what they are called.
    """

    def __init__(self, function: Callable[..., Any], ran: Iterable[Ran] = ()) -> None:
        search = Reading()
        if isinstance(function, nn.Module):
            self.roots: dict[str, nn.Module] = {"": function}
        else:
            self.roots = _outermost(search.of(function, "", DEPTH))
        self.modules: dict[str, nn.Module] = {}
        self.hidden: dict[str, nn.Module] = {}
        self._seen: set[int] = set()
        for path, module in self._take_in(self.roots):
            search.into(module, path)
        for call in ran:
            search.ran(call)
        while found := [pair for key, pair in search.met.items() if key not in self._seen]:
            # A part that no outer one lists is taken by itself.
            for hidden in (_outermost(found), dict(found)):
                if new := self._take_in(hidden):
                    self.hidden.update(hidden)
                    break
            for path, module in new:
                search.into(module, path)
        self.bindings, self.places, self.owners = search.bindings, search.places, search.owners
        self._read = search.read

    def _take_in(self, roots: dict[str, nn.Module]) -> list[tuple[str, nn.Module]]:
        """Adds modules and their parts; returns those that are new."""
        new = []
        for name, root in roots.items():
            # One that lists the modules of another may leave itself out.
            for path, module in ((name, root), *root.named_modules(prefix=name)):
                if id(module) not in self._seen:
                    self._seen.add(id(module))
                    called = path if path not in self.modules else f"{path}#{len(self.modules)}"
                    self.modules[called] = module
                    new.append((called, module))
        return new

    def names_of(self, module: nn.Module) -> frozenset[str]:
        """The names that code reads of a module's attributes by: its own, and what ran besides."""
        return frozenset(self._read.get(id(module), ()))

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
                if hasattr(found := content(cell), "compiler_config"):
                    yield found
        elif hasattr(compiled, "compiler_config"):
            yield compiled


def _outermost(found: Iterable[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    pairs = list(found)
    inner = {id(part) for _, module in pairs for part in module.modules() if part is not module}
    roots: dict[str, nn.Module] = {}
    for name, module in pairs:
        if id(module) not in inner:
            # Two closures may call different modules by one name.
            roots[name if name not in roots else f"{name}#{len(roots)}"] = module
    return roots
