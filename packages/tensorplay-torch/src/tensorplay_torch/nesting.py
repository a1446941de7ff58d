"""Whether a graphed callable is called where no replay may stand.

That is inside another capture or warm-up, or a transform of ``torch.func``. Then it runs as plain
code, and is part of what goes on around it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tensorplay_core.reclaim import captures_live
from tensorplay_core.runtime import select

from ._private import PRIVATE
from .graphs import DRIVER

if TYPE_CHECKING:
    import torch

__all__ = ["inside", "recording"]

_here = threading.local()
_recording = 0
_lock = threading.Lock()


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
    if _transforming():
        return True
    if not _recording and not captures_live():
        return False
    return getattr(_here, "depth", 0) > 0 or select(DRIVER).graph_capturing(device)
