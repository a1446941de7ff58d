"""Bodies of conditional nodes on the CPU: the host driver's, filled by the capture's recorder."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from tensorplay_core.errors import ConditionalError
from tensorplay_core.protocols import Capture, ConditionalKind
from tensorplay_torch.resources.devices import CPU
from tensorplay_torch.tracking.predicates import checked

from .capture import CpuCapture

__all__ = ["CpuBody", "open_bodies"]


class CpuBody:
    """One body, inside a capture or another body.

    Attributes:
        device: The CPU.
        parent: What it is a body of.
        inner: The same body, as core's host driver knows it.
        root: The capture that it is in.
    """

    device = CPU

    def __init__(
        self,
        parent: CpuCapture | CpuBody,
        inner: Capture,
        *,
        endless: torch.Tensor | None,
    ) -> None:
        self.parent: Capture = parent
        self.inner = inner
        self.root: CpuCapture = parent.root
        self._endless = endless
        self._undo = ExitStack()
        self._mark = 0

    @property
    def stream(self) -> int:
        """Handle of its own stream."""
        return self.inner.stream

    def enter(self) -> None:
        """Records into it from now on."""
        self.root.base.conditional_enter(self.inner)
        self._undo.enter_context(self.root.recorder.body())
        # A low-precision copy of a parameter made in a body exists only where the body ran.
        torch.clear_autocast_cache()
        self._undo.callback(torch.clear_autocast_cache)
        self._mark = self.root.recorder.operands.mark()

    def sample(self, predicate: object) -> None:
        """Samples ``predicate`` at this point of a while body."""
        tensor = checked(predicate, ConditionalKind.WHILE, CPU)
        self.root.base.conditional_set(self.inner, self.root.recorder.reader(tensor))
        self._endless = None

    def exit(self) -> None:
        """Ends it and makes its parent's stream current again.

        Raises:
            ConditionalError: A while body that neither writes its predicate nor sets a condition.
            UnjoinedWork: A stream forked inside it was not joined.
        """
        self._undo.close()
        operands = self.root.recorder.operands
        stuck = self._endless is not None and not operands.writes_to(
            self._endless, since=self._mark
        )
        self.root.base.conditional_exit(self.inner)
        if stuck:
            raise ConditionalError(
                doing="closing the body of",
                subject="a while loop",
                met="no work in it writes the predicate, and none sets the condition",
                remedy="Write the predicate in the body, call loop.condition(p) with another, or "
                "bound the loop with max_steps.",
            )


def open_bodies(
    parent: CpuCapture | CpuBody,
    kind: ConditionalKind,
    predicate: object,
    branches: int,
    *,
    first: bool,
    max_steps: int | None,
) -> tuple[CpuBody, ...]:
    """Adds a conditional node after all work captured so far; returns its bodies.

    Raises:
        PredicateError: ``predicate`` is not one of ``kind`` on the CPU.
    """
    tensor = checked(predicate, kind, CPU)
    root = parent.root
    inners = root.base.conditional_open(
        parent.inner,
        kind,
        root.recorder.reader(tensor),
        branches,
        first=first,
        max_steps=max_steps,
    )
    # Known to be bounded, a loop may leave its predicate alone.
    endless = tensor if kind is ConditionalKind.WHILE and max_steps is None else None
    return tuple(CpuBody(parent, inner, endless=endless) for inner in inners)
