"""Captures under way on CuPy streams, and the bodies inside them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import cupy

from tensorplay_core.protocols import Capture, CaptureOptions, Device

from .memory import PoolAllocator
from .operands import Operands
from .plans import Plans

__all__ = ["CupyBody", "CupyCapture", "innermost", "outermost"]

_serials = itertools.count(1)
_here = threading.local()


def _stack() -> list[CupyCapture]:
    return _here.__dict__.setdefault("stack", [])  # type: ignore[no-any-return]


def innermost() -> CupyCapture | None:
    """The capture or body that this thread is in."""
    stack = _stack()
    return stack[-1] if stack else None


def outermost() -> CupyCapture | None:
    """The capture that this thread is in, or in a body of."""
    inner = innermost()
    return inner.root if inner is not None else None


class CupyCapture:
    """One capture.

    Args:
        device: Where it runs.
        inner: The same capture, as the CUDA driver knows it.
        allocator: Where captured work gets memory.
        options: How it is made.
        adopted: Another library began it and will end it.

    Attributes:
        operands: What captured work may use; None if nobody is to look.
        plans: The cuFFT plans it has taken.
        callbacks: Host functions that it calls, with their arguments.
        bodies: Bodies entered and not left, the innermost last (of the outermost capture only).
        undo: Puts back what was current before.
    """

    parent: CupyCapture | None = None

    def __init__(
        self,
        device: Device,
        inner: Capture,
        allocator: PoolAllocator,
        options: CaptureOptions,
        *,
        adopted: bool = False,
    ) -> None:
        self.adopted = adopted
        self.device, self.inner, self.allocator, self.options = device, inner, allocator, options
        self.operands: Operands | None = None
        self.plans = Plans()
        self.callbacks: list[Any] = []
        self.bodies: list[CupyBody] = []
        self.undo = ExitStack()
        self.serial = next(_serials)

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def stream(self) -> int:
        """Handle of the stream that is captured."""
        return self.inner.stream

    @property
    def root(self) -> CupyCapture:
        """The outermost capture."""
        return self if self.parent is None else self.parent.root

    def lane(self, stream: int) -> object:
        """A name of the order that work on ``stream`` is in: work of one lane never overlaps.

        A body takes its turn on the stream of its parent, so the two are one lane.
        """
        if stream != self.stream:
            return self.serial, stream
        return 0 if self.parent is None else self.parent.lane(self.parent.stream)

    def enter(self, stream: Any) -> None:
        """Makes ``stream`` CuPy's current one, and the graph's pool what it allocates from."""
        with ExitStack() as undo:
            # A stream is pushed onto those of the current device, which the user may have changed.
            undo.enter_context(cupy.cuda.Device(int(self.inner.device)))  # type: ignore[call-overload]
            undo.enter_context(stream)
            undo.enter_context(cupy.cuda.using_allocator(self.allocator))
            undo.enter_context(_entered(self))
            undo.enter_context(_retaining(stream, self.root.callbacks))
            self.undo = undo.pop_all()

    def leave(self, note: Callable[[str], None]) -> None:
        """Undoes ``enter``, of open bodies too, the innermost first. Never raises: it notes."""
        for one in (*reversed(self.bodies), self):
            try:
                one.undo.close()
            except Exception as error:
                note(f"leaving {one!r} met {type(error).__name__}: {error}")
        self.bodies.clear()


class CupyBody(CupyCapture):
    """One body of a conditional node.

    Attributes:
        parent: The capture or body that it is in.
    """

    def __init__(self, parent: CupyCapture, inner: Capture) -> None:
        super().__init__(parent.device, inner, parent.allocator, parent.options)
        self.parent = parent


@contextmanager
def _entered(capture: CupyCapture) -> Iterator[None]:
    stack = _stack()
    stack.append(capture)
    try:
        yield
    finally:
        stack.remove(capture)


@contextmanager
def _retaining(stream: Any, callbacks: list[Any]) -> Iterator[None]:
    """CuPy keeps what ``launch_host_func`` is given in a list of the stream that captures."""
    before = stream._graph_host_funcargs
    stream._graph_host_funcargs = callbacks
    try:
        yield
    finally:
        stream._graph_host_funcargs = before
