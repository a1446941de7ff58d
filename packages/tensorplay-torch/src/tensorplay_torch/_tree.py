"""torch's registry of nested containers, and nothing else of its pytree: that module is private."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

__all__ = ["children", "is_registered", "rebuild"]


def is_registered(kind: type) -> bool:
    """True if torch knows how to take values of this very type apart."""
    return kind in _pytree.SUPPORTED_NODES


def children(value: Any) -> tuple[list[Any], Any]:
    """What a registered container holds, and what else is needed to build it again."""
    found, context = _pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
    return list(found), context


def rebuild(kind: type, values: list[Any], context: Any) -> Any:
    """The container of ``kind`` that holds ``values``."""
    return _pytree.SUPPORTED_NODES[kind].unflatten_fn(values, context)
