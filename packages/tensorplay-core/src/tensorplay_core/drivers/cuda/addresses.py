"""The addresses of the driver's functions, for code that is not Python's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .work import Work

__all__ = ["address", "bound"]

_VERSION = 12040
"""Functions are asked for in the form that they have since the oldest CUDA that is supported."""


def address(work: Work, name: str) -> int:
    """Where a function of the driver's is.

    Raises:
        DriverCallFailed: The driver has none of that name.
    """
    if name in work.addresses:
        return work.addresses[name]
    flags = work.native.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
    found = work.cu.cuGetProcAddress(name.encode(), _VERSION, flags, about=name)
    work.addresses[name] = int(found[0])
    return work.addresses[name]


def bound(
    work: Work, function: Callable[..., Any] | None, names: tuple[str, ...]
) -> Callable[..., Any] | None:
    """A function of the compiled library, given the addresses that it takes first.

    None if there is no such function, or no driver beneath the bindings that could be called.

    Args:
        work: The driver.
        function: Of the compiled library; the same for the same names.
        names: Of the driver's functions.

    Raises:
        DriverCallFailed: The driver lacks one of them.
    """
    if function is None or not work.is_native:
        return None
    found = work.bound.get(names)
    if found is None:
        found = partial(function, *(address(work, name) for name in names))
        work.bound[names] = found
    return found
