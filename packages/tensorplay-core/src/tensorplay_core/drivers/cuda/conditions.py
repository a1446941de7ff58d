"""What a launch must look at first, where it must: the current device, and memory that has died."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import StaleGraph

from .streams import SPECIAL

if TYPE_CHECKING:
    from .contexts import CudaDevice
    from .work import Work

__all__ = ["Call", "alive", "elsewhere", "in_context", "stale"]

Call = Callable[[Any, Any], Any]
"""Takes a native executable and a native stream; see ``hot`` for what it returns and raises."""


def elsewhere(work: Work, device: CudaDevice) -> Callable[[Any], bool]:
    """True of a target that means another device's stream in this thread as it is.

    On several GPUs a special handle means the stream of the device that is current.
    """
    current, own = work.hot.context, int(work.context(device))

    def is_elsewhere(target: Any) -> bool:
        return int(target) in SPECIAL and current() != own

    return is_elsewhere


def in_context(
    work: Work, device: CudaDevice, call: Call, elsewhere: Callable[[Any], bool]
) -> Call:
    """``call``, with the device's context current where it has to be."""

    def launch(native: Any, target: Any) -> Any:
        if elsewhere(target):
            with work.activated(device):
                return call(native, target)
        return call(native, target)

    return launch


def alive(dead: list[str], subject: str, call: Call) -> Call:
    """``call``, refused with StaleGraph once ``dead`` names memory that has died."""

    def launch(native: Any, target: Any) -> Any:
        if dead:
            raise stale(subject, dead)
        return call(native, target)

    return launch


def stale(subject: str, dead: list[str]) -> StaleGraph:
    """The error of a graph whose memory has died."""
    return StaleGraph(
        doing="replaying",
        subject=subject,
        met=f"memory that it reads has died: {', '.join(dead)}",
        remedy="Keep the inputs alive, or capture without check_input_liveness: then the graph "
        "does.",
    )
