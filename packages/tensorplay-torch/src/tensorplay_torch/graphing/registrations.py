"""Hears at once of a parameter, buffer or submodule that is registered on a watched module.

``module.weight = nn.Parameter(...)`` registers, and torch calls hooks for that. So a call need not
look for such changes: it only asks whether there was one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from torch.nn.modules import module as registry

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Hearing", "hear"]


class Hearing(Protocol):
    """Who wants to hear."""

    stirred: bool
    """Something was registered since this was made False."""


_hearing: dict[int, list[weakref.ref[Any]]] = {}
_hooked = False


def hear(listener: Hearing, modules: Iterable[nn.Module]) -> None:
    """Sets ``listener.stirred`` whenever something is registered on one of ``modules``.

    The listener is held weakly.
    """
    global _hooked
    if not _hooked:
        _hooked = True
        registry.register_module_parameter_registration_hook(_registered)
        registry.register_module_buffer_registration_hook(_registered)
        registry.register_module_module_registration_hook(_registered)
    reference = weakref.ref(listener)
    # By identity, since classes may compare modules otherwise. One that is given out again to
    # another module makes for a look in vain.
    keys = [id(module) for module in modules]
    for key in keys:
        _hearing.setdefault(key, []).append(reference)
    weakref.finalize(listener, _forget, keys, reference).atexit = False


def _registered(module: nn.Module, name: str, value: object) -> None:
    for reference in _hearing.get(id(module), ()):
        listener = reference()
        if listener is not None:
            listener.stirred = True


def _forget(keys: list[int], reference: weakref.ref[Any]) -> None:
    for key in keys:
        left = [one for one in _hearing.get(key, ()) if one is not reference]
        if left:
            _hearing[key] = left
        else:
            _hearing.pop(key, None)
