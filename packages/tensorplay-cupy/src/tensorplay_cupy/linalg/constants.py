"""Numbers that the libraries' headers give names, and scalars where the libraries read them."""

from __future__ import annotations

import ctypes

__all__ = [
    "ADJOINT",
    "COMPUTE",
    "DEVICE_POINTERS",
    "HOST_POINTERS",
    "LOWER",
    "NORMAL",
    "PREFIX",
    "RIGHT",
    "SCALARS",
    "SUMS",
    "TRANSPOSED",
    "TYPES",
    "UPPER",
]

TYPES = {"e": 2, "f": 0, "d": 1, "F": 4, "D": 5}
"""cudaDataType of each dtype, by its character."""

SUMS = {"e": 0, "f": 0, "d": 1, "F": 4, "D": 5}
"""The type to sum in: half precision is summed in single."""

COMPUTE = {"e": 68, "f": 68, "d": 70, "F": 68, "D": 70}
"""The same as cublasComputeType; none of these is TF32."""

PREFIX = {"f": "s", "d": "d", "F": "c", "D": "z"}
"""First letter of routines."""

HOST_POINTERS, DEVICE_POINTERS = 0, 1
NORMAL, TRANSPOSED, ADJOINT = 0, 1, 2
LOWER, UPPER = 0, 1
RIGHT = 1


class Scalars:
    """Addresses of a one and a zero in host memory, of the type that the library sums in."""

    def __init__(self, character: str) -> None:
        kind = ctypes.c_double if character in "dD" else ctypes.c_float
        width = 2 if character in "FD" else 1
        self._one, self._zero = (kind * width)(1), (kind * width)(0)
        self.one, self.zero = ctypes.addressof(self._one), ctypes.addressof(self._zero)


SCALARS = {character: Scalars(character) for character in TYPES}
