"""Predicates of conditional nodes: one Bool, or one integer for a switch, on the right device."""

from __future__ import annotations

from typing import Any

import torch

from tensorplay_core.errors import OperationRefused, PredicateError
from tensorplay_core.protocols import ConditionalKind
from tensorplay_core.signature import a_type

__all__ = ["checked", "read"]

INDICES = (torch.int32, torch.int64)


def checked(predicate: Any, kind: ConditionalKind | None, device: torch.device) -> torch.Tensor:
    """``predicate`` without its autograd history, once it is one of ``kind`` on ``device``.

    Args:
        predicate: A Bool of one element; for a switch an int32 or int64 of one element.
        kind: None accepts either.
        device: Where the capture runs.

    Raises:
        PredicateError: It is something else.
    """
    index = kind is ConditionalKind.SWITCH
    wanted = "one int32 or int64" if index else "one Bool"
    met = None
    if not isinstance(predicate, torch.Tensor):
        met = f"it is {a_type(predicate)}"
    elif predicate.layout != torch.strided or predicate.numel() != 1:
        met = f"it is {predicate.layout} and holds {predicate.numel()} elements"
    elif predicate.dtype not in _dtypes(kind):
        met = f"its dtype is {predicate.dtype}"
    elif predicate.device != device:
        met = f"it is on {predicate.device}, the capture on {device}"
    if met is not None:
        raise PredicateError(
            doing="reading",
            subject=f"the {'index' if index else 'predicate'} of a conditional",
            met=met,
            remedy=f"Pass {wanted} tensor on {device}, written by captured or earlier work.",
        )
    return predicate.detach()  # type: ignore[no-any-return]


def read(predicate: Any) -> int:
    """The value of a predicate or index, once its device has computed it.

    Raises:
        PredicateError: It is neither.
        OperationRefused: The device's work is being captured, so there is no value yet.
    """
    device = torch.device("cpu")
    if isinstance(predicate, torch.Tensor) and predicate.is_cuda:
        device = predicate.device
    tensor = checked(predicate, None, device)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise OperationRefused(
            operation="reading a predicate",
            met="the stream is capturing, so the predicate has no value yet",
            remedy="Branch by cond(), while_loop() or a body of the graph that captures.",
        )
    return int(tensor.item())


def _dtypes(kind: ConditionalKind | None) -> tuple[torch.dtype, ...]:
    if kind is None:
        return (torch.bool, *INDICES)
    return INDICES if kind is ConditionalKind.SWITCH else (torch.bool,)
