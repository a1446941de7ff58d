"""Arguments that are no tensors: a graph holds them fixed, so each call must bring the same.

Only values that cannot change unnoticed are taken. Numbers are compared with their type and their
sign: 1, 1.0 and True are three constants, 0.0 and -0.0 are two, and a NaN equals itself.
"""

from __future__ import annotations

import enum
import numbers
import pathlib
import sys
import types
from typing import Any

import torch

__all__ = ["equal_arrays", "is_array", "is_constant", "same"]

BY_VALUE: tuple[type, ...] = (
    type(None),
    numbers.Number,
    str,
    bytes,
    range,
    pathlib.PurePath,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)
BY_IDENTITY: tuple[type, ...] = (
    type,
    enum.Enum,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.EllipsisType,
    torch.Generator,
    torch._ops.OpOverload,
)
SLICE = ("start", "stop", "step")


def is_constant(value: object) -> bool:
    """True if the value can be held fixed: nothing about it changes without its identity."""
    # By its type alone: to ask a proxy for its class would evaluate it.
    kind = type(value)
    if kind is slice:
        return all(map(is_constant, (value.start, value.stop, value.step)))  # type: ignore[attr-defined]
    if issubclass(kind, frozenset):
        return all(map(is_constant, value))  # type: ignore[call-overload]
    return issubclass(kind, BY_VALUE + BY_IDENTITY)


def same(captured: Any, given: Any) -> bool:
    """True if ``given`` stands for the constant ``captured``."""
    if captured is given:
        return True
    if type(captured) is not type(given):
        return False
    kind = type(captured)
    if issubclass(kind, tuple) and kind is not torch.Size:
        return len(captured) == len(given) and all(map(same, captured, given))
    if is_array(captured):
        return equal_arrays(captured, given)
    if kind is slice:
        return all(same(getattr(captured, end), getattr(given, end)) for end in SLICE)
    if not issubclass(kind, (*BY_VALUE, frozenset)):
        return False
    if issubclass(kind, numbers.Number):
        return repr(captured) == repr(given)
    return bool(captured == given)


def is_array(value: Any) -> bool:
    """True for an array of NumPy's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def equal_arrays(one: Any, other: Any) -> bool:
    """True if two arrays of NumPy's hold the same, bit for bit."""
    alike = one.dtype == other.dtype and one.shape == other.shape and not one.dtype.hasobject
    return alike and one.tobytes() == other.tobytes()
