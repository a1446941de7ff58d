"""Notices that what a graph depends on beside its inputs is not what it was at the capture.

A graph reads parameters and buffers where they were. Looking at all of them would cost more than
the launch, so each call looks at some in turn: one without gradients, four with. Whatever changes
all parameters at once (``.to()``, ``load_state_dict(assign=True)``, ``requires_grad_()``,
``torch.func.functional_call``) is noticed by the next call, and a single one after as many calls as
a round takes. Every fourth look is followed by one at a buffer, a submodule's mode or its hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from tensorplay_core.errors import StaleGraph

from .eligibility import HOOKS
from .reached import Reached

__all__ = ["Watch"]

SELDOM = 4
"""A buffer, mode or hook is looked at after so many looks at parameters."""


class _Entry:
    """One thing to look at: ``container.get(key)`` must be ``value``, unmoved."""

    __slots__ = ("container", "key", "name", "pointer", "requires", "seen", "value")

    def __init__(self, container: Any, key: Any, value: Any, name: str) -> None:
        self.container, self.key, self.value, self.name = container, key, value, name
        self.pointer: int | None = None
        self.requires = False
        self.seen = ""
        if isinstance(value, torch.Tensor):
            self.pointer, self.requires = value.data_ptr(), value.requires_grad
            self.seen = f"{value.dtype} on {value.device}"

    @property
    def changed(self) -> bool:
        """True if it is not as it was."""
        value = self.value
        return self.container.get(self.key) is not value or (
            self.pointer is not None
            and (value.data_ptr() != self.pointer or value.requires_grad is not self.requires)
        )

    def met(self) -> str:
        """What changed."""
        now = self.container.get(self.key)
        if not isinstance(self.value, torch.Tensor):
            return f"{self.name} is {now}, was {self.value}"
        if now is not self.value:
            return f"{self.name} was replaced by another tensor"
        if now.requires_grad is not self.requires:
            return f"{self.name}.requires_grad is {now.requires_grad}, was {self.requires}"
        kind = f"{now.dtype} on {now.device}"
        was = f" ({kind}, was {self.seen})" if kind != self.seen else ""
        return f"{self.name} moved to other memory{was}"


class _Hooks:
    """Whether a module has any hook, asked like a dict."""

    def __init__(self, module: nn.Module) -> None:
        self._hooks = [getattr(module, attribute) for attribute in HOOKS]

    def get(self, key: object) -> bool:
        return any(self._hooks)


class Watch:
    """See the module.

    Args:
        reached: The modules that the callable runs.
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
        often = [*_tensors(reached, "_parameters", "parameter"), *_loose(others)]
        seldom = [*_tensors(reached, "_buffers", "buffer"), *_modes(reached, hooks_outside)]
        self._often, self._seldom = often or seldom, seldom
        self._next = self._next_seldom = 0

    def look(self, times: int) -> bool:
        """Looks at the next few; True if one of them changed."""
        entries, place = self._often, self._next
        count = len(entries)
        for _ in range(times if times < count else count):
            entry = entries[place]
            value = entry.value
            if entry.container.get(entry.key) is not value or (
                entry.pointer is not None
                and (value.data_ptr() != entry.pointer or value.requires_grad is not entry.requires)
            ):
                return True
            place += 1
            if (place == count or not place % SELDOM) and self._seldom and self._look_seldom():
                return True
            if place == count:
                place = 0
        self._next = place
        return False

    def _look_seldom(self) -> bool:
        place = self._next_seldom
        if self._seldom[place].changed:
            return True
        self._next_seldom = (place + 1) % len(self._seldom)
        return False

    def error(self) -> StaleGraph:
        """The error that names everything that changed."""
        entries = [*self._often, *self._seldom]
        met = dict.fromkeys(entry.met() for entry in entries if entry.changed)
        return StaleGraph(
            doing="calling",
            subject=self._subject,
            met="; ".join(met) or "what it depends on changed and changed back",
            remedy="Graph it again after such a change (release(x), then make_graphed_callables), "
            "or pass on_change='recapture'. To keep a graph, change values in place: p.copy_(v), "
            "load_state_dict(state) without assign=True.",
        )


def _tensors(reached: Reached, kind: str, word: str) -> Iterator[_Entry]:
    for path, module in reached.modules.items():
        container = vars(module)[kind]
        for key, tensor in container.items():
            if tensor is not None:
                name = f"{path}.{key}" if path else key
                yield _Entry(container, key, tensor, f"{word} {name!r}")


def _loose(others: Iterable[tuple[str, torch.Tensor]]) -> Iterator[_Entry]:
    for name, tensor in others:
        yield _Entry({0: tensor}, 0, tensor, name)


def _modes(reached: Reached, hooks_outside: bool) -> Iterator[_Entry]:
    outermost = {id(module) for module in reached.roots.values()}
    for path, module in reached.modules.items():
        # In the other mode of an outermost module the callable runs without graphs.
        if id(module) not in outermost:
            yield _Entry(vars(module), "training", module.training, f"{path}.training")
        if id(module) not in outermost or not hooks_outside:
            yield _Entry(_Hooks(module), None, False, f"{path} having hooks")
