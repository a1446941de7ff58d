"""Captures that somebody else began, ``torch.cuda.graph`` above all: conditionals go into them."""

from __future__ import annotations

from tensorplay_core.errors import CaptureError, GraphStateError
from tensorplay_core.protocols import CaptureOptions, Template
from tensorplay_torch.resources.bases import Bases
from tensorplay_torch.resources.devices import resolve_device
from tensorplay_torch.resources.generators import Generators
from tensorplay_torch.resources.pools import PoolRegistry
from tensorplay_torch.resources.streams import SideStreams

from .capture import OpenCapture
from .watch import Watch

__all__ = ["ForeignCapture", "adopt"]

# The owner of a foreign graph does not say when that dies, so what its bodies use stays for good.
_kept: list[ForeignCapture] = []


class ForeignCapture(OpenCapture):
    """A capture whose end is its owner's business."""

    def end(self) -> Template:
        """Refuses.

        Raises:
            GraphStateError: Always.
        """
        raise GraphStateError(
            doing="ending",
            subject=f"a capture on {self.device}",
            met="another library began it",
            remedy="End it there.",
        )

    def abort(self, error: BaseException | None) -> None:
        """Ends the bodies that are open in it, and leaves the rest to its owner."""
        self.end_bodies(error)


def adopt(
    bases: Bases, pools: PoolRegistry, streams: SideStreams, stream: object, owner: str
) -> ForeignCapture:
    """Takes in the capture under way on ``stream`` of the current device.

    The memory that bodies in it allocate is never given back: nothing tells when its graph is gone.

    Raises:
        CaptureError: The stream is not capturing, or this is the CPU, where only what this driver
            records sees torch's work.
    """
    device = resolve_device(None)
    if device.type != "cuda":
        raise CaptureError(
            doing="adopting",
            subject=f"a capture that {owner} began",
            met="torch's work on the CPU is not recorded in it",
            remedy="Begin the capture with tensorplay_torch.graph(g, device='cpu').",
        )
    base = bases("cuda")
    watch = Watch(device, CaptureOptions(track_operands=False), Generators(device))
    inner = base.graph_adopt(stream, owner)
    capture = ForeignCapture(base, inner.stream, pools.create(device), watch, streams)
    capture.adopted = inner
    _kept.append(capture)
    return capture
