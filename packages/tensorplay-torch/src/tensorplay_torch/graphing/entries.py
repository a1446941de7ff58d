"""The things that a watch looks at: tensors, modules, and values that code finds by name."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from operator import call, is_
from typing import TYPE_CHECKING, Any

import torch

from tensorplay_torch.tracking.code import Mentioned, is_library
from tensorplay_torch.tracking.fixed import is_array, is_constant, same
from tensorplay_torch.tracking.held import CONTAINERS, Held
from tensorplay_torch.tracking.reached import Binding, Reached

from .eligibility import HOOKS
from .forms import Form, Forms, form_of, reformed

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "BindingEntry",
    "Identical",
    "ModuleEntry",
    "Several",
    "TensorEntry",
    "absent_of",
    "added",
    "binding_entries",
    "constants_of",
    "form_entries",
    "tensor_entries",
]

KINDS = ("parameter", "buffer")
ABSENT = object()
TOGETHER = 4
"""How many values that code finds by name are looked at together."""
BY_IDENTITY = 32
"""The same of those that are themselves or are not."""
SHORT = 8
"""Of longer lists and dicts only the length is looked at."""


class TensorEntry:
    """A tensor that ``container.get(key)`` must still find, unmoved."""

    __slots__ = ("container", "form", "key", "name", "pointer", "requires", "seen", "value")

    def __init__(self, container: Any, key: Any, value: torch.Tensor, name: str) -> None:
        self.container, self.key, self.value, self.name = container, key, value, name
        self.pointer, self.requires = value.data_ptr(), value.requires_grad
        self.seen = f"{value.dtype} on {value.device}"
        self.form = form_of(value)

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
        else:
            yield from reformed(self.name, self.form, form_of(now))


class BindingEntry:
    """A value that a function's code finds by name."""

    def __init__(self, binding: Binding) -> None:
        self._name, self._read, self._value = binding
        self._held = Held(binding.value, long=SHORT)
        # What is in a list may change though the list stays.
        self._fixed = not _fills(binding.value)
        # So may the memory of a tensor, by ``t.data = ...`` or ``t.resize_``.
        self._seen = _seen(binding.value) if _has_address(binding.value) else None

    @property
    def changed(self) -> bool:
        """True if it is not as it was."""
        now = self._read()
        if now is self._value and self._fixed:
            return self._seen is not None and _seen(now) != self._seen
        return not self._held.is_same(now, growing=True)

    def changes(self) -> Iterator[str]:
        """What is not as it was."""
        now = self._read()
        if now is self._value and self._seen is not None:
            pointer, form = self._seen
            if now.data_ptr() != pointer:
                yield f"{self._name} moved to other memory"
            else:
                yield from reformed(self._name, form, form_of(now))
        for where in self._held.changes(now, growing=True):
            if where:
                yield f"{self._name}{where} is another"
            elif isinstance(now, torch.Tensor):
                yield f"{self._name} is another Tensor"
            else:
                yield f"{self._name} is {_said(now)}, was {_said(self._value)}"


class Several:
    """Entries that are looked at together."""

    def __init__(self, entries: Iterable[BindingEntry]) -> None:
        self._entries = list(entries)

    @property
    def changed(self) -> bool:
        """True if one is not as it was."""
        return any(entry.changed for entry in self._entries)

    def changes(self) -> Iterator[str]:
        """What is not as it was."""
        for entry in self._entries:
            yield from entry.changes()


class Identical:
    """Values that are themselves or are not: functions, classes, objects.

    Args:
        bindings: They.
    """

    def __init__(self, bindings: Sequence[Binding]) -> None:
        self._reads = [one.read for one in bindings]
        self._values = [one.value for one in bindings]
        self._entries = Several(map(BindingEntry, bindings))

    @property
    def changed(self) -> bool:
        """True if one is not as it was."""
        same_ones = all(map(is_, map(call, self._reads), self._values))
        return not same_ones and self._entries.changed

    def changes(self) -> Iterator[str]:
        """What is not as it was."""
        return self._entries.changes()


class ModuleEntry:
    """A module: its mode, hooks and parts, and the constants among its attributes.

    Args:
        path: What errors call it.
        module: Held weakly.
        mode: Its mode matters; that of an outermost module is looked at by every call.
        hooks: It must have no hooks.
        names: By which other code than its own reads its attributes.
    """

    def __init__(
        self,
        path: str,
        module: nn.Module,
        *,
        mode: bool,
        hooks: bool,
        names: frozenset[str] = frozenset(),
    ) -> None:
        self._prefix = f"{path}." if path else ""
        self._path = path
        self._module = weakref.ref(module)
        self._hooks = [getattr(module, attribute) for attribute in HOOKS] if hooks else []
        self._kind = type(module)
        self._parts = list(module._modules.values())
        containers = [vars(module)[f"_{kind}s"] for kind in KINDS]
        self._count = sum(map(len, containers))
        self._absent = [(one, name) for one in containers for name in one if one[name] is None]
        self._given = {
            kind: {name for name, value in vars(module)[f"_{kind}s"].items() if value is not None}
            for kind in KINDS
        }
        self._constants = constants_of(module, others=names)
        # One without hooks of its own to mind is what is graphed: its forward is to be replays.
        self._missing = absent_of(module) if hooks else absent_of(module) - {"forward"}
        # A compiled module has the mode of the one that it wraps, which has an entry of its own.
        if mode and "training" in vars(module):
            self._constants["training"] = module.training

    @property
    def changed(self) -> bool:
        """True if anything is not as it was."""
        module = self._module()
        if module is None or any(self._hooks) or type(module) is not self._kind:
            return True
        attributes = vars(module)
        if len(attributes["_parameters"]) + len(attributes["_buffers"]) != self._count:
            return any(True for _ in self.changes())
        for container, name in self._absent:
            if container.get(name) is not None:
                return True
        for name, value in self._constants.items():
            if attributes.get(name, ABSENT) is not value:
                return any(True for _ in self.changes())
        if self._missing and not self._missing.isdisjoint(attributes):
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
            now = attributes.get(name, ABSENT)
            if now is ABSENT:
                yield f"{self._prefix}{name} is gone, was {_said(value)}"
            elif now is not value and not same(value, now):
                yield f"{self._prefix}{name} is {_said(now)}, was {_said(value)}"
        for name in added(module, self._missing):
            yield f"{self._prefix}{name} is {_said(attributes[name])}, was not there"
        if list(module._modules.values()) != self._parts:
            yield f"the parts of module {self._path!r} are others"
        if any(self._hooks):
            yield f"module {self._path!r} has hooks, which no replay runs"
        if type(module) is not self._kind:
            kind = type(module).__name__
            yield f"module {self._path!r} is a {kind}, was a {self._kind.__name__}"
        yield from self._others(attributes)

    def _others(self, attributes: dict[str, Any]) -> Iterator[str]:
        """Parameters and buffers that were not there."""
        for kind in KINDS:
            given = self._given[kind]
            for name, value in attributes[f"_{kind}s"].items():
                if value is not None and name not in given:
                    yield f"{kind} {self._prefix + name!r} was None or not there"


def tensor_entries(reached: Reached, kind: str, word: str) -> Iterator[TensorEntry]:
    """Entries of the modules' tensors that ``kind`` holds, which errors call ``word``."""
    for path, module in reached.modules.items():
        container = vars(module)[kind]
        for key, tensor in container.items():
            if tensor is not None:
                name = f"{path}.{key}" if path else key
                yield TensorEntry(container, key, tensor, f"{word} {name!r}")


def form_entries(entries: Sequence[TensorEntry]) -> Iterator[Forms]:
    """Entries of the forms of tensors that have entries of their own, which name what changed."""
    yield from Forms.of([one.value for one in entries])


def constants_of(
    owner: object, method: str = "forward", *, others: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The constants and tensors among an object's attributes that code mentions, by name.

    Args:
        owner: A module, say.
        method: The method that runs first; those that it calls are looked into as well.
        others: Names that other code knows which reads them.
    """
    names = Mentioned(owner, method).names | others
    return {
        name: value
        for name, value in vars(owner).items()
        if name in names and name != "training" and _is_plain(value)
    }


def absent_of(module: nn.Module) -> frozenset[str]:
    """The names that a module's code looks up and that are none of its attributes.

    Code may ask whether they are there, and names of the class may be hidden by them.
    """
    if is_library(type(module).__module__):
        return frozenset({"forward"} - vars(module).keys())
    return frozenset({"forward", *Mentioned(module, "forward").read} - vars(module).keys())


def added(owner: object, names: frozenset[str]) -> list[str]:
    """Those of ``names`` that are attributes of an object now; a graphed forward is no other."""
    attributes = vars(owner)
    return [
        name
        for name in sorted(names & attributes.keys())
        if not type(attributes[name]).__module__.startswith("tensorplay_")
    ]


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return is_constant(value) or isinstance(value, torch.Tensor)


def binding_entries(bindings: Sequence[Binding]) -> Iterator[Several | Identical]:
    """Entries of the bindings: the longer it takes to look at one, the fewer are together."""
    several: list[Binding] = []
    identical: list[Binding] = []
    for binding in bindings:
        if _fills(binding.value):
            yield Several([BindingEntry(binding)])
        elif _is_plain(binding.value):
            several.append(binding)
        else:
            identical.append(binding)
    for first in range(0, len(several), TOGETHER):
        yield Several(map(BindingEntry, several[first : first + TOGETHER]))
    for first in range(0, len(identical), BY_IDENTITY):
        yield Identical(identical[first : first + BY_IDENTITY])


def _fills(value: object) -> bool:
    """True for what may change in place: lists, dicts and arrays of NumPy's, and tuples of them."""
    if isinstance(value, CONTAINERS) or is_array(value):
        return True
    return type(value) is tuple and any(map(_fills, value))


def _seen(value: torch.Tensor) -> tuple[int, Form]:
    return value.data_ptr(), form_of(value)


def _has_address(value: object) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided  # type: ignore[attr-defined]


def _said(value: object) -> str:
    if _is_plain(value) and not callable(value) and not isinstance(value, torch.Tensor):
        return repr(value)
    return f"another {type(value).__name__}"
