"""Arrays that the CUDA driver would own, without a device."""

import re
from types import SimpleNamespace
from typing import Any

from tensorplay_core.drivers.cuda.arrays import DeviceArray
from tensorplay_core.drivers.cuda.contexts import CudaDevice


def own(
    shape: tuple[int, ...], typestr: str = "<f4", *, at: int = 4096, on: int = 0
) -> DeviceArray:
    owner: Any = SimpleNamespace(address=at, born=0)
    return DeviceArray(owner, shape, typestr, CudaDevice(on))


def stable(value):
    """A name of ``value`` that is the same in every process: not of where it lies."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
