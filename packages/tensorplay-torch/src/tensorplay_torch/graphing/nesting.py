"""Whether a graphed callable is called where no replay may stand.

That is inside another capture or warm-up, a transform of ``torch.func``, or where torch
differentiates forward. Then it runs as plain code, and is part of what goes on around it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

from tensorplay_core.reclaim import captures_live
from tensorplay_core.runtime import select
from tensorplay_torch._private import PRIVATE
from tensorplay_torch.graphs import DRIVER
from tensorplay_torch.resources.devices import resolve_device
from tensorplay_torch.structure import structure_of

__all__ = ["device_of", "inside", "recording"]

_here = threading.local()
_recording = 0
# A finaliser may graph something while this thread is in there.
_lock = threading.RLock()


@contextmanager
def recording() -> Iterator[None]:
    """While entered, this thread warms up or captures callables."""
    global _recording
    with _lock:
        _recording += 1
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1
        with _lock:
            _recording -= 1


_transforming = PRIVATE["functorch_active"].value or bool


def inside(device: torch.device) -> bool:
    """True if this thread warms up or captures on ``device``, or transforms. Cheap otherwise."""
    # A replay would hand back values without their tangents.
    if _transforming() or forward_ad._current_level >= 0:
        return True
    if not _recording and not captures_live():
        return False
    return getattr(_here, "depth", 0) > 0 or select(DRIVER).graph_capturing(device)


def device_of(value: Any) -> torch.device:
    """The device of the first tensor in nested arguments; without any, the current one."""
    leaves: list[Any] = []
    structure_of(value, leaves)
    devices = [leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return devices[0] if devices else resolve_device(None)
