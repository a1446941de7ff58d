"""What ``preflight`` found: each thing once, with its place and a remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorplay_core.errors import OperationRefused
from tensorplay_torch.resources.storages import key_of
from tensorplay_torch.tracking.refusals import Reason

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Finding", "Findings", "host_draw", "named"]

KINDS = {
    Reason.HOST_READ: "host read",
    Reason.MEMORY: "host read",
    Reason.COPIED_BY_BYTES: "host read",
    Reason.ERROR_CHECK: "host read",
    Reason.VALUE_SHAPE: "data-dependent shape",
    Reason.MASK_INDEX: "data-dependent shape",
    Reason.RNG_BY_HAND: "randomness by hand",
    Reason.RNG_UNREGISTERED: "unregistered generator",
    Reason.HOST_WRITE: "write on the host",
    Reason.BLOCKING_COPY: "blocking copy",
    Reason.MOVES_EXTERNAL: "memory that moves",
    Reason.DATA_ASSIGNMENT: "memory that moves",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that captures or replays mind.

    Attributes:
        kind: ``"host read"``, ``"data-dependent shape"``, ``"host randomness"`` ...
        operation: What was called.
        where: The user's ``"file:line"``, ``""`` where that is not known.
        met: What it does, a clause.
        remedy: What to do instead.
        problem: A capture would refuse it or a replay not repeat it; else it is only to be known.
    """

    kind: str
    operation: str
    where: str
    met: str
    remedy: str
    problem: bool = True

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.kind}: {self.operation}{place}: {self.met}.\n{self.remedy}"


class Findings:
    """Those of one run, each kind once a line of the user's."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Finding] = {}

    def add(self, finding: Finding) -> None:
        """Notes one, if nothing of its kind is known of its line."""
        # One read is seen as the function and again as the operation beneath it.
        subject = "" if finding.where else finding.operation
        self._found.setdefault((finding.kind, finding.where, subject), finding)

    def refusal(self, error: OperationRefused, kind: str = "") -> None:
        """Notes what a gate would refuse."""
        kind = kind or next((KINDS[one] for one in KINDS if one.value[0] == error.met), "refused")
        self.add(Finding(kind, error.operation, error.where, error.met, error.remedy))

    def all(self) -> tuple[Finding, ...]:
        """Problems first, each in the order in which they came."""
        return tuple(sorted(self._found.values(), key=lambda one: not one.problem))


def host_draw(operation: str, place: str, device: object) -> Finding:
    """A draw of random numbers that a replay would not draw again."""
    return Finding(
        "host randomness",
        operation,
        place,
        "it draws random numbers on the host, and a replay would repeat those of the capture",
        f"Draw with torch on {device}, or draw outside and pass the result as a tensor.",
    )


def named(tensors: Iterable[tuple[str, Tensor]]) -> dict[int, str]:
    """Names of tensors by what identifies their storages."""
    found: dict[int, str] = {}
    for name, tensor in tensors:
        try:
            found.setdefault(key_of(tensor), name)
        except NotImplementedError:
            continue
    return found
