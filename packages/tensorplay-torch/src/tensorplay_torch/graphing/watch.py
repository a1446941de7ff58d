"""Notices that what a graph depends on beside its inputs is not what it was at the capture.

A graph reads parameters and buffers where they were, and numbers as they were. Looking at all of
them would cost more than the launch, so each call looks at some in turn, for less than 3 % of its
time: at one parameter without gradients, at four with. Whatever changes all parameters at once
(``.to()``, ``requires_grad_()``, ``load_state_dict(assign=True)``, ``functional_call``) is noticed
by the next call, and a single one after as many calls as a round takes. Every call with gradients,
and every sixteenth without, looks at one other thing: at a buffer, at a submodule (its mode, its
hooks, its parts, and the plain attributes that its ``forward`` mentions), or at a value that the
code of a function finds by name.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tensorplay_core.errors import StaleGraph
from tensorplay_torch.tracking.fixed import is_constant, same
from tensorplay_torch.tracking.held import CONTAINERS, Held
from tensorplay_torch.tracking.reached import Binding, Reached, names_in

from .eligibility import HOOKS

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Watch", "constants_of"]

LOOKS = 4
"""How many parameters a call with gradients looks at."""
SELDOM = 16
"""Every so many calls without gradients look at something else as well."""


class _TensorEntry:
    """A tensor that ``container.get(key)`` must still find, unmoved."""

    __slots__ = ("container", "key", "name", "pointer", "requires", "seen", "value")

    def __init__(self, container: Any, key: Any, value: torch.Tensor, name: str) -> None:
        self.container, self.key, self.value, self.name = container, key, value, name
        self.pointer, self.requires = value.data_ptr(), value.requires_grad
        self.seen = f"{value.dtype} on {value.device}"

    @property
    def changed(self) -> bool:
        """True if it is not as it was."""
        value = self.value
        return (
            self.container.get(self.key) is not value
            or value.data_ptr() != self.pointer
            or value.requires_grad is not self.requires
        )

    def changes(self) -> Iterator[str]:
        """What is not as it was."""
        now = self.container.get(self.key)
        if now is not self.value:
            yield f"{self.name} was replaced by another tensor"
        elif now.requires_grad is not self.requires:
            yield f"{self.name}.requires_grad is {now.requires_grad}, was {self.requires}"
        elif now.data_ptr() != self.pointer:
            kind = f"{now.dtype} on {now.device}"
            was = f" ({kind}, was {self.seen})" if kind != self.seen else ""
            yield f"{self.name} moved to other memory{was}"


class _BindingEntry:
    """A value that a function's code finds by name."""

    def __init__(self, binding: Binding) -> None:
        self._name, self._read, self._value = binding
        self._held = Held(binding.value)
        # What is in a list may change though the list stays.
        self._fixed = not isinstance(binding.value, CONTAINERS)

    @property
    def changed(self) -> bool:
        """True if it is not as it was."""
        now = self._read()
        if now is self._value and self._fixed:
            return False
        return not self._held.is_same(now, growing=True)

    def changes(self) -> Iterator[str]:
        """What is not as it was."""
        now = self._read()
        for where in self._held.changes(now, growing=True):
            if where:
                yield f"{self._name}{where} is another"
            else:
                yield f"{self._name} is {_said(now)}, was {_said(self._value)}"


class _ModuleEntry:
    """A module: its mode, hooks and parts, and the constants among its attributes.

    Args:
        path: What errors call it.
        module: Held weakly.
        mode: Its mode matters; that of an outermost module is looked at by every call.
        hooks: It must have no hooks.
    """

    def __init__(self, path: str, module: nn.Module, *, mode: bool, hooks: bool) -> None:
        self._prefix = f"{path}." if path else ""
        self._path = path
        self._module = weakref.ref(module)
        self._hooks = [getattr(module, attribute) for attribute in HOOKS] if hooks else []
        self._parts = list(module._modules.values())
        self._constants = constants_of(module)
        if mode:
            self._constants["training"] = module.training

    @property
    def changed(self) -> bool:
        """True if anything is not as it was."""
        module = self._module()
        if module is None or any(self._hooks):
            return True
        attributes = vars(module)
        for name, value in self._constants.items():
            if attributes.get(name) is not value:
                return any(True for _ in self.changes())
        return list(attributes["_modules"].values()) != self._parts

    def changes(self) -> Iterator[str]:
        """What is not as it was."""
        module = self._module()
        if module is None:
            yield f"module {self._path!r} is gone"
            return
        attributes = vars(module)
        for name, value in self._constants.items():
            now = attributes.get(name)
            if now is not value and not same(value, now):
                yield f"{self._prefix}{name} is {_said(now)}, was {_said(value)}"
        if list(module._modules.values()) != self._parts:
            yield f"the parts of module {self._path!r} are others"
        if any(self._hooks):
            yield f"module {self._path!r} has hooks, which no replay runs"


class Watch:
    """See the module.

    Args:
        reached: What the callable runs and reads.
        others: Further tensors that its graph reads, with what errors call them.
        hooks_outside: The outermost modules' own hooks run around the graph at every call.
        subject: What errors call the callable.
    """

    def __init__(
        self,
        reached: Reached,
        others: Iterable[tuple[str, torch.Tensor]],
        *,
        hooks_outside: bool,
        subject: str,
    ) -> None:
        self._subject = subject
        loose = [_TensorEntry({0: tensor}, 0, tensor, name) for name, tensor in others]
        self._often = [*_tensors(reached, "_parameters", "parameter"), *loose]
        outermost = {id(module) for module in reached.roots.values()}
        self._seldom: list[Any] = [
            *_tensors(reached, "_buffers", "buffer"),
            *(
                _ModuleEntry(
                    path,
                    module,
                    mode=id(module) not in outermost,
                    hooks=id(module) not in outermost or not hooks_outside,
                )
                for path, module in reached.modules.items()
            ),
            *map(_BindingEntry, reached.bindings),
        ]
        self._looks = min(LOOKS, len(self._often))
        self._next = itertools.cycle(self._often).__next__
        self._other = itertools.cycle(self._seldom).__next__ if self._seldom else None
        self._calls = itertools.cycle(range(SELDOM if self._often else LOOKS)).__next__
        self._any = bool(self._often)

    def glance(self) -> bool:
        """A look by a call without gradients; True if something changed."""
        if self._any:
            entry = self._next()
            value = entry.value
            if (
                entry.container.get(entry.key) is not value
                or value.data_ptr() != entry.pointer
                or value.requires_grad is not entry.requires
            ):
                return True
        return not self._calls() and self._other_changed()

    def look(self) -> bool:
        """A look by a call with gradients; True if something changed."""
        for _ in range(self._looks):
            entry = self._next()
            value = entry.value
            if (
                entry.container.get(entry.key) is not value
                or value.data_ptr() != entry.pointer
                or value.requires_grad is not entry.requires
            ):
                return True
        return self._other_changed()

    def _other_changed(self) -> bool:
        return self._other is not None and self._other().changed

    def error(self) -> StaleGraph:
        """The error that names everything that changed."""
        entries = [*self._often, *self._seldom]
        met = dict.fromkeys(line for entry in entries for line in entry.changes())
        return StaleGraph(
            doing="calling",
            subject=self._subject,
            met="; ".join(met) or "what it depends on changed and changed back",
            remedy="Graph it again after such a change (release(x), then make_graphed_callables), "
            "or pass on_change='recapture'. To keep a graph, change values in place: p.copy_(v), "
            "load_state_dict(state) without assign=True; and keep what varies in tensors.",
        )


def _tensors(reached: Reached, kind: str, word: str) -> Iterator[_TensorEntry]:
    for path, module in reached.modules.items():
        container = vars(module)[kind]
        for key, tensor in container.items():
            if tensor is not None:
                name = f"{path}.{key}" if path else key
                yield _TensorEntry(container, key, tensor, f"{word} {name!r}")


def constants_of(owner: object, method: str = "forward") -> dict[str, Any]:
    """The constants and tensors among an object's attributes that its code mentions, by name.

    Args:
        owner: A module, say.
        method: The method that runs first; those that it calls are looked into as well.
    """
    names = _names_read(type(owner), method)
    return {
        name: value
        for name, value in vars(owner).items()
        if name in names and name != "training" and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return is_constant(value) or isinstance(value, torch.Tensor)


def _names_read(kind: type, method: str) -> set[str]:
    """The names that the code of a method knows, and of the methods and properties that it uses."""
    names: set[str] = set()
    pending = [method]
    while pending:
        code = getattr(kind, pending.pop(), None)
        if isinstance(code, property):
            code = code.fget
        # torch.no_grad() and the like wrap what they decorate.
        code = inspect.unwrap(code) if callable(code) else code
        for name in names_in(code) - names:
            names.add(name)
            pending.append(name)
    return names


def _said(value: object) -> str:
    if _is_plain(value) and not callable(value) and not isinstance(value, torch.Tensor):
        return repr(value)
    return f"another {type(value).__name__}"
