"""The addresses of the driver's functions, for code that is not Python's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .work import Work

__all__ = ["address"]

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
