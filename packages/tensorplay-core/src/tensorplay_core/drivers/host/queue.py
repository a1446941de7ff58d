"""The work of the host: plain Python callables on streams, run at once or recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tensorplay_core.errors import ArgumentTypeError

from .buffers import Buffer, memory_of
from .capturing import Capturing
from .ledger import Ledger
from .recording import Node
from .streams import Event, Lane, Stream

__all__ = ["Queue"]

NOT_IN_BODIES = frozenset({"host", "alloc", "free", "event_record", "event_wait"})
"""Node kinds that a conditional body cannot hold (``CUgraphConditionalNodeParams``)."""


class Queue:
    """Streams, events and work.

    A stream runs its work when it is submitted, so outside a capture everything is done when the
    call returns. Inside one it is recorded and nothing runs.

    Attributes:
        loop_limit: Runs of a while body after which a replay gives up, unless the loop has
            ``max_steps`` of its own.
    """

    def __init__(self) -> None:
        self.loop_limit = 1_000_000
        self._capturing = Capturing()
        self._ledger = Ledger()

    def stream(self, name: str = "", *, blocking: bool = False) -> Stream:
        """A new stream.

        Args:
            name: What errors call it.
            blocking: Order it with the legacy stream, as ``cudaStreamCreate`` does. While such a
                stream is captured, the legacy stream cannot be used.
        """
        return self._capturing.stream(name, blocking)

    def event(self) -> Event:
        """A new event."""
        return Event(self._capturing)

    @property
    def current(self) -> Stream:
        """This thread's current stream: at first the legacy one."""
        return self._capturing.current

    @property
    def running(self) -> bool:
        """True inside work that runs: what is submitted there is part of it, and not recorded."""
        return self._capturing.threads.state.executing > 0

    @contextmanager
    def using(self, stream: Stream) -> Iterator[Stream]:
        """Makes ``stream`` current in this thread while entered."""
        state = self._capturing.threads.state
        before, state.stream = state.stream, stream
        try:
            yield stream
        finally:
            state.stream = before

    def synchronize(self) -> None:
        """Waits for all work, which outside a capture is done already.

        Raises:
            OperationRefused: The current stream is capturing, or a live capture forbids this thread
                to wait: one in ``global`` mode, or one of this thread in ``thread_local`` mode.
        """
        self._capturing.refuse_device_wait("synchronize")

    def submit(
        self,
        work: Callable[[], object],
        *,
        name: str,
        kind: str = "kernel",
        attributes: dict[str, Any] | None = None,
        writes: Sequence[object] = (),
        keep: object = None,
    ) -> None:
        """Runs ``work`` on the current stream, or records it if that stream is capturing.

        Args:
            work: Called without arguments, at each replay again.
            name: Of the operation, in pictures and errors.
            kind: Of the node, as in ``topology.Node``.
            attributes: Further facts for pictures.
            writes: What it changes. A while body that writes its predicate is known by this.
            keep: Lives as long as the graph does.

        Raises:
            ArgumentTypeError: ``work`` cannot be called.
            OperationRefused: The stream is the legacy one and a blocking stream is captured, or a
                conditional body cannot hold a node of this kind.
            CaptureInvalidated: The capture was broken before.
        """
        if not callable(work):
            raise ArgumentTypeError(
                doing="submitting",
                subject=name,
                met=f"the work is {work!r}",
                remedy="Pass something that can be called without arguments.",
            )
        state = self._capturing.threads.state
        if self._capturing.live and not state.executing:
            lane = state.stream.lane
            if lane is not None:
                node = Node(kind, name, attributes=attributes or {}, work=work)
                self._record(lane, node, writes)
                if keep is not None:
                    lane.capture.holdings.keep(keep)
                return
            self._capturing.refuse_legacy(state.stream, name)
        state.executing += 1
        try:
            work()
        finally:
            state.executing -= 1

    def _record(self, lane: Lane, node: Node, writes: Sequence[object]) -> None:
        capture = lane.capture
        if node.kind in NOT_IN_BODIES and capture.conditional is not None:
            self._capturing.refuse(
                node.name,
                f"{capture} cannot hold a node of kind {node.kind!r}",
                "Move it before or after the conditional.",
                [capture],
            )
        capture.add(lane, node)
        for written in writes:
            if isinstance(written, Buffer):
                capture.operand(written)
            if capture.conditional is not None:
                memory = _memory_or_none(written)
                if memory is not None:
                    capture.written(memory)

    def launch(
        self,
        kernel: Callable[..., object],
        *args: Any,
        name: str | None = None,
        writes: Sequence[object] = (),
    ) -> None:
        """Calls ``kernel(*args)`` on the current stream, or records the call.

        The kernel gets buffers over the same memory. A graph keeps the storage of buffers alive
        that were not born in its capture; numbers are constants of the capture. Buffers inside
        containers are kept as they are.

        Args:
            kernel: The kernel.
            args: Its arguments.
            name: Of the operation; None is the kernel's own name.
            writes: Which buffers it changes; see ``submit``.

        Raises: as ``submit``.
        """
        name = name or getattr(kernel, "__name__", None) or type(kernel).__name__
        if self._capturing.live:
            args = tuple(map(self._held, args))
        self.submit(partial(kernel, *args), name=name, writes=writes)

    def _held(self, value: Any) -> Any:
        """What work is to hold of an operand."""
        lane = self.current.lane
        if lane is None or not isinstance(value, Buffer):
            return value
        return lane.capture.operand(value)


def _memory_or_none(value: object) -> memoryview | None:
    try:
        return memory_of(value)
    except ArgumentTypeError:  # An array of a framework, which is no concern of ours.
        return None
