"""The things that a watch looks at: tensors and modules; what code finds by name is in bindings."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tensorplay_torch.tracking.code import Mentions, is_library
from tensorplay_torch.tracking.fixed import same
from tensorplay_torch.tracking.reached import Reached

from .bindings import is_plain, said
from .eligibility import HOOKS
from .forms import Forms, form_of, reformed

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "ModuleEntry",
    "TensorEntry",
    "absent_of",
    "added",
    "constants_of",
    "form_entries",
    "tensor_entries",
]

KINDS = ("parameter", "buffer")
ABSENT = object()


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


class ModuleEntry:
    """A module: its mode, hooks and parts, and the constants among its attributes.

    Args:
        path: What errors call it.
        module: Held weakly.
        mode: Its mode matters; that of an outermost module is looked at by every call.
        hooks: It must have no hooks.
        mentions: What methods mention.
        names: By which other code than its own reads its attributes.
    """

    def __init__(
        self,
        path: str,
        module: nn.Module,
        *,
        mode: bool,
        hooks: bool,
        mentions: Mentions,
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
        self._constants = constants_of(module, mentions=mentions, others=names)
        # One without hooks of its own to mind is what is graphed: its forward is to be replays.
        self._missing = absent_of(module, mentions) - (set() if hooks else {"forward"})
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
                yield f"{self._prefix}{name} is gone, was {said(value)}"
            elif now is not value and not same(value, now):
                yield f"{self._prefix}{name} is {said(now)}, was {said(value)}"
        for name in added(module, self._missing):
            yield f"{self._prefix}{name} is {said(attributes[name])}, was not there"
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
    owner: object,
    method: str = "forward",
    *,
    mentions: Mentions,
    others: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The constants and tensors among an object's attributes that code mentions, by name.

    Args:
        owner: A module, say.
        method: The method that runs first; those that it calls are looked into as well.
        mentions: What methods mention.
        others: Names that other code knows which reads them.
    """
    names = mentions.of(owner, method).names | others
    return {
        name: value
        for name, value in vars(owner).items()
        if name in names and name != "training" and is_plain(value)
    }


def absent_of(module: nn.Module, mentions: Mentions) -> frozenset[str]:
    """The names that a module's code looks up and that are none of its attributes.

    Code may ask whether they are there, and names of the class may be hidden by them.
    """
    if is_library(type(module).__module__):
        return frozenset({"forward"} - vars(module).keys())
    return frozenset({"forward", *mentions.of(module).read} - vars(module).keys())


def added(owner: object, names: frozenset[str]) -> list[str]:
    """Those of ``names`` that are attributes of an object now; a graphed forward is no other."""
    attributes = vars(owner)
    return [
        name
        for name in sorted(names & attributes.keys())
        if not type(attributes[name]).__module__.startswith("tensorplay_")
    ]
