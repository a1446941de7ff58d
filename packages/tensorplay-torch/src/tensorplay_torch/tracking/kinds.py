"""What a value is, found out without running code of its own: no proxy is evaluated."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Collection
from typing import Any

import torch

__all__ = [
    "apart_of",
    "attributes_of",
    "is_graphed",
    "is_module",
    "is_of_users",
    "is_tensor",
    "items_of",
    "tensors_among",
]

PLAIN = (
    torch.Tensor,
    torch.nn.Module,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    list,
    tuple,
    dict,
    set,
    frozenset,
    deque,
    str,
    bytes,
    int,
    float,
    complex,
)
OF_OPTIMIZERS = frozenset({"state", "param_groups", "defaults"})
LIBRARIES = ("torch", "numpy", "builtins", "threading", "logging", "weakref", "functools")


def is_module(value: object) -> bool:
    """True for a module of torch's; a proxy of one is none."""
    return issubclass(type(value), torch.nn.Module)


def is_tensor(value: object) -> bool:
    """True for a tensor; a proxy of one is none."""
    return issubclass(type(value), torch.Tensor)


def tensors_among(owner: object, names: Collection[str]) -> set[str]:
    """Those of ``names`` under which an object has tensors."""
    attributes = attributes_of(owner) or {}
    return {name for name in names if is_tensor(attributes.get(name))}


def is_graphed(value: Any) -> bool:
    """True for a graphed callable: its graphs come and go, and what it stands for stays."""
    kind = type(value)
    ours = kind is types.FunctionType or str(kind.__module__).startswith("tensorplay_")
    return ours and hasattr(value, "graphed") and hasattr(value, "original")


def is_of_users(value: object) -> bool:
    """True for an object of a user's class, which has attributes."""
    kind = type(value)
    if issubclass(kind, PLAIN) or str(kind.__module__).partition(".")[0] in LIBRARIES:
        return False
    return attributes_of(value) is not None


def attributes_of(value: object) -> dict[str, Any] | None:
    """The dict of an object's attributes; None if it has none, or makes one up."""
    for one in type(value).__mro__:
        if (found := vars(one).get("__dict__")) is not None:
            if type(found) not in (types.GetSetDescriptorType, types.MemberDescriptorType):
                return None
            attributes = found.__get__(value)
            return attributes if type(attributes) is dict else None
    return None


def apart_of(value: object) -> frozenset[str]:
    """Attributes of an object that others look after."""
    return OF_OPTIMIZERS if issubclass(type(value), torch.optim.Optimizer) else frozenset()


def items_of(value: Any, most: int) -> list[tuple[str, Any]]:
    """What a container holds, with how it is spelled; nothing if that is more than ``most``."""
    kind = type(value)
    found: list[tuple[str, Any]] = []
    if issubclass(kind, list) and list.__len__(value) <= most:
        found = [(f"[{place}]", one) for place, one in enumerate(list.__iter__(value))]
    elif issubclass(kind, tuple) and tuple.__len__(value) <= most:
        found = [(f"[{place}]", one) for place, one in enumerate(tuple.__iter__(value))]
    elif issubclass(kind, dict) and dict.__len__(value) <= most:
        try:
            found = [(f"[{_spelled(key)}]", one) for key, one in dict.items(value)]
        except RuntimeError:  # Another thread writes it.
            return []
    return found


def _spelled(key: object) -> str:
    return repr(key) if type(key) in (str, int, bool, float) else f"a {type(key).__name__}"
