"""How an executable ends: its launches are waited for, then it goes, once no capture is live."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tensorplay_core import reclaim
from tensorplay_core.errors import TensorplayError

if TYPE_CHECKING:
    from .contexts import CudaDevice
    from .work import Work

__all__ = ["drain", "end"]

log = logging.getLogger(__name__)


def drain(work: Work, native: Any, device: CudaDevice) -> None:
    """Waits for the launches of one executable, and for nothing else.

    An upload comes after every earlier launch of the same executable, on whatever stream that was
    (so the driver's documentation of cuGraphUpload): waiting for one waits for them all.
    """
    about, service = f"executable {int(native):#x} on {device}", work.service(device)
    with work.inside(device):
        work.cu.cuGraphUpload(native, service, about=about)
        work.cu.cuStreamSynchronize(service, about=about)


def end(
    work: Work, native: Any, owner: object, kept: object, device: CudaDevice, *, idle: bool = False
) -> None:
    """Destroys an executable that has no owner, and lets go of what was ``kept`` for it.

    Args:
        work: The driver.
        native: The native executable.
        owner: Who destroys it.
        kept: What its launches use.
        device: Where it runs.
        idle: It was never launched, so there is nothing to wait for.
    """

    def finish() -> None:
        nonlocal owner, kept
        try:
            if not idle:
                drain(work, native, device)
        except TensorplayError:
            # A context lost to a failed kernel has nothing left to wait for.
            log.exception("waiting for the last launches of a graph failed")
        if owner is None:
            with work.inside(device):
                work.cu.cuGraphExecDestroy(native, about=f"executable {int(native):#x}")
        owner = kept = None

    reclaim.dispose(finish)
