"""Hooks of conditional nodes: the CUDA driver's, on CuPy predicates and CuPy streams."""

from __future__ import annotations

from typing import Any

import cupy

from tensorplay_core.errors import OperationRefused
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import ConditionalKind
from tensorplay_cupy import streams
from tensorplay_cupy.arrays import reference
from tensorplay_cupy.captures import CupyBody, CupyCapture
from tensorplay_cupy.refusals import caller

from .graph import Graphs

__all__ = ["Conditionals"]


class Conditionals(Graphs):
    """The conditional noun, and with it the whole driver."""

    @hookimpl
    def tensorplay_conditional_open(
        self,
        capture: CupyCapture,
        kind: ConditionalKind,
        predicate: Any,
        branches: int,
        first: bool,
        max_steps: int | None,
    ) -> tuple[CupyBody, ...]:
        """Adds the node; the graph owns the predicate from then on."""
        sampled = reference(predicate)
        inners = self.base.runtime.conditional_open(
            capture.inner, kind, sampled, branches, first=first, max_steps=max_steps
        )
        self._own(capture, sampled)
        return tuple(CupyBody(capture, inner) for inner in inners)

    @hookimpl
    def tensorplay_conditional_enter(self, body: CupyBody) -> None:
        """Captures into the body; its stream is CuPy's, and it allocates from the graph's pool."""
        self.base.runtime.conditional_enter(body.inner)
        body.enter(self.cupy_stream(body.inner.stream, body.device))
        body.root.bodies.append(body)

    @hookimpl
    def tensorplay_conditional_set(self, body: CupyBody, predicate: Any) -> None:
        """Samples the predicate here; the graph owns it from then on."""
        sampled = reference(predicate)
        self.base.runtime.conditional_set(body.inner, sampled)
        self._own(body, sampled)

    @hookimpl
    def tensorplay_conditional_exit(self, body: CupyBody) -> None:
        """Ends the body; its parent's stream is CuPy's current one again."""
        body.root.bodies.remove(body)
        body.undo.close()
        self.base.runtime.conditional_exit(body.inner)

    @hookimpl
    def tensorplay_conditional_read(self, predicate: Any) -> int:
        """Waits for the device and reads the predicate.

        Raises:
            OperationRefused: The current stream is capturing.
        """
        if streams.capturing():
            raise OperationRefused(
                operation="reading a predicate",
                where=caller(),
                met="the current stream is capturing, so the predicate has no value yet",
                remedy="Branch by cond(), while_loop() or a body of the graph that captures.",
            )
        device = cupy.cuda.runtime.getDevice()
        with self.base.runtime.using_stream(streams.current_stream(device), device):
            return self.base.runtime.conditional_read(reference(predicate))

    def _own(self, capture: CupyCapture, sampled: object) -> None:
        self.base.driver.retain(capture.stream, (), always=(sampled,))
