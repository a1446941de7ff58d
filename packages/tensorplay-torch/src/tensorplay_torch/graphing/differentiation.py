"""What the outputs of a callable can be differentiated by, read from its autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensorplay_core.errors import CaptureError, OperationRefused

from .substitution import StandIns

__all__ = ["Leaf", "gradients", "history_begins", "leaves_of", "refuse_unused"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that gradients are computed for.

    Attributes:
        tensor: As the captured code uses it: an input buffer, a parameter's stand-in, or itself.
        real: What gradients go to at a call; None for an input, where that is the caller's tensor.
        name: What errors call it.
        place: Its place among the inputs; -1 if it is none.
    """

    tensor: torch.Tensor
    real: torch.Tensor | None
    name: str
    place: int = -1


def history_begins() -> int:
    """A number that the nodes which autograd makes from now on, in this thread, are above."""
    with torch.enable_grad():
        probe = torch.zeros((), requires_grad=True).view(1)
    return int(probe.grad_fn._sequence_nr())  # type: ignore[union-attr]


def leaves_of(
    outputs: Iterable[torch.Tensor],
    *,
    inputs: Sequence[torch.Tensor],
    paths: Sequence[str],
    stand_ins: StandIns,
    since: int,
    is_born: Callable[[torch.Tensor], bool],
    subject: str,
) -> list[Leaf]:
    """The leaves that ``outputs`` depend on: inputs, then parameters, then what else is met.

    Args:
        outputs: Tensors that require grad.
        inputs: The input buffers.
        paths: What errors call each of them.
        stand_ins: Of the parameters.
        since: What ``history_begins`` returned before the callable ran.
        is_born: True for a tensor that the callable made itself, of which no gradient is wanted.
        subject: What errors call the callable.

    Raises:
        OperationRefused: A reentrant checkpoint is in between.
        CaptureError: It uses a tensor that was computed before it was called.
    """
    met = _met(outputs, since, subject)
    found = [
        Leaf(tensor, None, path, place)
        for place, (tensor, path) in enumerate(zip(inputs, paths, strict=True))
        if met.pop(id(tensor), None) is not None
    ]
    for name, parameter, stand_in in stand_ins.all():
        if met.pop(id(stand_in), None) is not None:
            found.append(Leaf(stand_in, parameter, f"parameter {name!r}"))
    for tensor in met.values():
        if is_born(tensor):
            continue
        name = f"a tensor of shape {tuple(tensor.shape)} that it closes over"
        if tensor._backward_hooks:
            raise CaptureError(
                doing="graphing",
                subject=subject,
                met=f"{name} has a hook, which would be recorded and then run once more",
                remedy="Pass the tensor as an argument, or register the hook after graphing.",
            )
        found.append(Leaf(tensor, tensor, name))
    return found


def gradients(
    outputs: Sequence[torch.Tensor],
    leaves: Sequence[Leaf],
    given: Sequence[torch.Tensor],
    *,
    retain: bool,
) -> list[torch.Tensor | None]:
    """The gradients of ``outputs`` at ``given`` for each leaf, as outside of autocast."""
    device = outputs[0].device.type
    with torch.autocast(device, enabled=False):
        found: Sequence[Any] = torch.autograd.grad(
            outputs,
            [leaf.tensor for leaf in leaves],
            grad_outputs=given,
            retain_graph=retain,
            allow_unused=True,
        )
    return list(found)


def refuse_unused(
    leaves: Sequence[Leaf],
    *,
    inputs: Sequence[torch.Tensor],
    paths: Sequence[str],
    parameters: Iterable[tuple[str, torch.Tensor]],
    subject: str,
) -> None:
    """Raises if an input or a parameter that requires grad has no part in the outputs.

    Raises:
        CaptureError: It names each of them.
    """
    used = {id(leaf.tensor) for leaf in leaves} | {id(leaf.real) for leaf in leaves}
    unused = [
        path
        for path, tensor in zip(paths, inputs, strict=True)
        if tensor.requires_grad and id(tensor) not in used
    ]
    unused += [
        f"parameter {name!r}"
        for name, tensor in parameters
        if tensor.requires_grad and id(tensor) not in used
    ]
    if unused:
        raise CaptureError(
            doing="graphing",
            subject=subject,
            met=f"these require grad and have no part in its outputs: {', '.join(unused)}",
            remedy="Pass allow_unused_input=True, which gives them no gradient, as eager does; or "
            "let them not require grad.",
        )


def _met(outputs: Iterable[torch.Tensor], since: int, subject: str) -> dict[int, torch.Tensor]:
    """The leaves of the autograd graph, in the order of a walk from the outputs."""
    pending = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen: set[Any] = set(pending)
    leaves: dict[int, torch.Tensor] = {}
    while pending:
        node: Any = pending.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves[id(variable)] = variable
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise OperationRefused(
                operation="torch.utils.checkpoint",
                met="a reentrant checkpoint runs a backward inside the backward, which needs "
                "every leaf and cannot compute chosen gradients",
                remedy="Pass use_reentrant=False to checkpoint.",
                doing="graphing",
            )
        if node._sequence_nr() <= since:
            raise CaptureError(
                doing="graphing",
                subject=subject,
                met=f"it uses a tensor that was computed before the call (by {node.name()}) and "
                "whose history reaches back there",
                remedy="Pass that tensor as an argument, or detach() it.",
            )
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return leaves
