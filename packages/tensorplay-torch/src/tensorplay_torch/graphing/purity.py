"""Captured code that does more than work of its device: that part no replay would do again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from tensorplay_core.errors import OperationRefused
from tensorplay_torch.resources.generators import put_back
from tensorplay_torch.tracking.attributes import Attributes
from tensorplay_torch.tracking.names import Names
from tensorplay_torch.tracking.preservation import HostRandom
from tensorplay_torch.tracking.repeats import Repeats

from .candidate import Candidate
from .substitution import StandIns

__all__ = ["drawn_elsewhere", "nothing_else", "refuse_backward", "refuse_changing"]


@contextmanager
def nothing_else(candidate: Candidate) -> Iterator[None]:
    """Refuses what the code in the block did beside work of its device: no replay does it again.

    Raises:
        OperationRefused: It changed what Python code sees, or drew random numbers on the host.
    """
    reached = candidate.reached
    attributes = Attributes({**reached.owners, **reached.modules})
    names = Names(reached.places)
    leaves = {
        f"{name}.grad": (value, value.grad)
        for name, _, value in reached.bindings
        if isinstance(value, torch.Tensor) and value.is_leaf
    }
    host = HostRandom()
    drawn_here = candidate.device.type != "cpu"
    state = torch.default_generator.get_state()
    try:
        yield
        library = host.drawn()
        if (
            not library
            and drawn_here
            and not torch.equal(state, torch.default_generator.get_state())
        ):
            library = "torch's generator of the CPU"
        bound = {name for name, (leaf, grad) in leaves.items() if leaf.grad is not grad}
        changes = sorted({*attributes.changes(), *names.changes(), *bound})
    finally:
        host.restore()
        if drawn_here:
            put_back(torch.default_generator, state)
    if library:
        raise drawn_elsewhere(library, candidate.device, candidate.subject)
    if changes:
        attributes.restore()
        names.restore()
        for leaf, grad in leaves.values():
            leaf.grad = grad
        raise OperationRefused(
            operation="setting an attribute or a variable",
            doing="graphing",
            subject=candidate.subject,
            met=f"it sets {', '.join(changes)} in each call, and a replay runs no Python",
            remedy="Return the value as an output, or write a tensor in place (buffer.copy_(x)). "
            "What only the first call sets is fine: warm up with num_warmup_iters ≥ 1.",
        )


def refuse_backward(
    candidate: Candidate, stand_ins: StandIns, inputs: Sequence[torch.Tensor]
) -> None:
    """Refuses a call that has added to ``.grad`` of parameters or inputs, which were stand-ins.

    Raises:
        OperationRefused: It has.
    """
    named: list[tuple[str, torch.Tensor]]
    named = [(f"parameter {name!r}", one) for name, _, one in stand_ins.all()]
    named += zip(candidate.arguments.paths, inputs, strict=True)
    added = [name for name, one in named if one.is_leaf and one.grad is not None]
    if added:
        raise OperationRefused(
            operation="a backward inside the callable",
            doing="graphing",
            subject=candidate.subject,
            met=f"it runs backward(), which adds to .grad of {', '.join(added)}",
            remedy="Return the loss and call backward() on it outside, or take gradients with "
            "torch.autograd.grad. Whole training steps are captured by graph(), or by "
            "tensorplay_adapt.",
        )


def refuse_changing(candidate: Candidate, repeats: Repeats) -> None:
    """Refuses a callable that does other work in each call, for the same arguments.

    Raises:
        OperationRefused: Two calls of the warm-up differ; it is said in what.
    """
    met = repeats.difference()
    if met is not None and not candidate.compiled:
        raise OperationRefused(
            operation="work that changes from call to call",
            doing="graphing",
            subject=candidate.subject,
            met=f"{met}: Python counts, draws or looks at the clock, and a replay runs no Python",
            remedy="Pass what changes as a tensor, keep it in one that is written in place "
            f"(buffer.add_(1)), or draw with torch on {candidate.device}.",
        )


def drawn_elsewhere(source: str, device: torch.device, subject: str) -> OperationRefused:
    """The error for a random draw that no replay on ``device`` makes."""
    return OperationRefused(
        operation="a random draw on the host",
        doing="graphing",
        subject=subject,
        met=f"it draws from {source}, and a replay would repeat the draw of the capture",
        remedy=f"Draw with torch on {device}, or draw outside and pass the result as a tensor.",
    )
