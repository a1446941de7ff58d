"""Bodies of conditional nodes on CUDA: captured by core's CUDA driver, fed with memory by torch."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from tensorplay_core.protocols import Capture, ConditionalKind
from tensorplay_torch.resources.bases import lend
from tensorplay_torch.resources.routing import routed_body
from tensorplay_torch.tracking.predicates import checked

from .capture import OpenCapture

__all__ = ["CudaBody", "open_bodies"]


class CudaBody:
    """One body, inside a capture or another body.

    Attributes:
        device: Where it runs.
        parent: What it is a body of.
        inner: The same body, as core's CUDA driver knows it.
        depth: How many bodies deep it is, from 1.
    """

    def __init__(self, parent: OpenCapture | CudaBody, inner: Capture) -> None:
        self.device: torch.device = parent.device
        self.parent: Capture = parent
        self.inner = inner
        self.depth: int = parent.depth + 1
        self._root = parent.root
        self._undo = ExitStack()

    @property
    def root(self) -> OpenCapture:
        """The capture that it is in."""
        return self._root

    @property
    def stream(self) -> int:
        """Handle of its own stream."""
        return self.inner.stream

    def enter(self) -> None:
        """Starts capturing it: its stream is current and allocates from its own memory."""
        root = self._root
        lane = root.lane(self.depth)
        lend(self.inner, lane)
        with root.watch.unforeign():
            root.base.conditional_enter(self.inner)
        with ExitStack() as undo:
            undo.push(self._left_open)
            undo.enter_context(torch.cuda.stream(lane.torch))
            undo.enter_context(routed_body(root.pool, root.body_natives(self.depth), root.begun))
            # A low-precision copy of a parameter made in a body exists only where the body ran.
            torch.clear_autocast_cache()
            undo.callback(torch.clear_autocast_cache)
            undo.enter_context(root.watch.body())
            self._undo = undo.pop_all()
        root.open_bodies.append(self._undo)

    def _left_open(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Closes the body in the driver beneath, if torch's side of it could not be set up."""
        if error is not None:
            self._root.base.conditional_exit(self.inner)

    def sample(self, predicate: object) -> None:
        """Samples ``predicate`` at this point of a while body."""
        tensor = checked(predicate, ConditionalKind.WHILE, self.device)
        with self._root.watch.unforeign():
            self._root.base.conditional_set(self.inner, tensor)

    def exit(self) -> None:
        """Ends it and makes its parent's stream current again.

        Raises:
            ConditionalError: A while body that cannot end its loop.
            UnjoinedWork: A stream forked inside it was not joined.
            OperationRefused: It holds work that a body cannot have.
        """
        root = self._root
        self._undo.close()
        root.open_bodies.remove(self._undo)
        root.base.conditional_exit(self.inner)


def open_bodies(
    parent: OpenCapture | CudaBody,
    kind: ConditionalKind,
    predicate: object,
    branches: int,
    *,
    first: bool,
    max_steps: int | None,
) -> tuple[CudaBody, ...]:
    """Adds a conditional node after all work captured so far; returns its bodies.

    Raises:
        PredicateError: ``predicate`` is not one of ``kind`` on the device.
    """
    root = parent.root
    with root.watch.unforeign():
        inners = root.base.conditional_open(
            parent.inner,
            kind,
            checked(predicate, kind, parent.device),
            branches,
            first=first,
            max_steps=max_steps,
        )
    return tuple(CudaBody(parent, inner) for inner in inners)
