"""Entries of values that code finds by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import call, is_

import torch

from tensorplay_torch.tracking.fixed import is_array, is_constant
from tensorplay_torch.tracking.held import CONTAINERS, Held
from tensorplay_torch.tracking.reached import Binding

from .forms import Form, form_of, reformed

__all__ = ["BindingEntry", "Identical", "Several", "binding_entries", "is_plain", "said"]

TOGETHER = 4
"""How many values that code finds by name are looked at together."""
BY_IDENTITY = 32
"""The same of those that are themselves or are not."""
SHORT = 8
"""Of longer lists and dicts only the length is looked at."""


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
                yield f"{self._name} is {said(now)}, was {said(self._value)}"


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


def is_plain(value: object) -> bool:
    """True for constants and tensors, and tuples of them."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    return is_constant(value) or issubclass(type(value), torch.Tensor)


def binding_entries(bindings: Sequence[Binding]) -> Iterator[Several | Identical]:
    """Entries of the bindings: the longer it takes to look at one, the fewer are together."""
    several: list[Binding] = []
    identical: list[Binding] = []
    for binding in bindings:
        if _fills(binding.value):
            yield Several([BindingEntry(binding)])
        elif is_plain(binding.value):
            several.append(binding)
        else:
            identical.append(binding)
    for first in range(0, len(several), TOGETHER):
        yield Several(map(BindingEntry, several[first : first + TOGETHER]))
    for first in range(0, len(identical), BY_IDENTITY):
        yield Identical(identical[first : first + BY_IDENTITY])


def _fills(value: object) -> bool:
    """True for what may change in place: lists, dicts and arrays of NumPy's, and tuples of them."""
    if issubclass(type(value), CONTAINERS) or is_array(value):
        return True
    return type(value) is tuple and any(map(_fills, value))


def _seen(value: torch.Tensor) -> tuple[int, Form]:
    return value.data_ptr(), form_of(value)


def _has_address(value: object) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided  # type: ignore[attr-defined]


def said(value: object) -> str:
    """What errors say of a value."""
    if is_plain(value) and not callable(value) and not isinstance(value, torch.Tensor):
        return repr(value)
    return f"another {type(value).__name__}"
