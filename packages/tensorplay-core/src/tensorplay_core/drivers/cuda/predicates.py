"""What a conditional samples: one Bool, or one index, in memory of the capturing device."""

from __future__ import annotations

from typing import Any

from tensorplay_core.errors import PredicateError, TensorplayError
from tensorplay_core.protocols import ConditionalKind
from tensorplay_core.signature import named

from .arrays import View, view

__all__ = ["BOOL", "INDICES", "checked"]

BOOL = "|b1"
INDICES = {"<i4": 32, "<i8": 64}
"""Element types of a switch index, with their bits."""


def checked(
    predicate: Any, kind: ConditionalKind | None, device: int | None, *, doing: str
) -> View:
    """The facts of a predicate.

    Args:
        predicate: The array.
        kind: The node it is for; None allows a Bool or an index.
        device: Where it must be; None is anywhere on a GPU.
        doing: What is being done, for the error.

    Raises:
        PredicateError: It is not one Bool (SWITCH: one signed 32- or 64-bit integer) there.
    """
    wanted = "one signed 32- or 64-bit integer" if kind is ConditionalKind.SWITCH else "one Bool"
    allowed = {ConditionalKind.SWITCH: set(INDICES), None: {BOOL, *INDICES}}.get(kind, {BOOL})
    try:
        facts = view(predicate)
    except TensorplayError as error:
        raise _refused(predicate, error.met, wanted, doing) from error
    if facts.size != 1:
        raise _refused(predicate, f"it has {facts.size} elements", wanted, doing)
    if facts.typestr not in allowed:
        raise _refused(predicate, f"its element type is {facts.typestr!r}", wanted, doing)
    if device is not None and facts.device is not None and facts.device != int(device):
        met = f"it is on cuda:{facts.device}, the capture on cuda:{int(device)}"
        raise _refused(predicate, met, wanted, doing)
    return facts


def _refused(predicate: Any, met: str, wanted: str, doing: str) -> PredicateError:
    return PredicateError(
        doing=doing,
        subject=f"predicate {named(predicate)}",
        met=met,
        remedy=f"Pass {wanted} in the memory of the capturing device, computed by captured work.",
    )
