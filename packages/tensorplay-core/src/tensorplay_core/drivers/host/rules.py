"""What a capture forbids.

The rules are those of CUDA's stream capture (CUDA C++ Programming Guide, "Graphs: stream capture").
Always refused: waiting for, or asking about, a stream or an event that is captured; ordering a
captured stream after work outside its capture, or two captures after each other; forking the legacy
stream; any use of the legacy stream while a blocking stream is captured. Refused as the mode says:
other calls that wait (a synchronisation, a read-back, an event query). ``global`` refuses them of
every thread, ``thread_local`` of the thread that began the capture, ``relaxed`` of none. Whatever
is refused breaks the captures that it would have harmed. Allocating is never refused: on a host it
waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from tensorplay_core.errors import OperationRefused
from tensorplay_core.places import user_place

from .capture import Capture
from .streams import Mark, Stream, Threads

__all__ = ["Rules"]

LATER = "Move it after the capture."
READ_LATER = (
    "Read it after a replay; to branch on it inside the graph use cond(), while_loop() or a "
    "conditional body."
)


class Rules:
    """The refusals, over the captures that are live.

    Attributes:
        live: The captures under way, bodies not counted. Falsy is the common case.
        legacy: The legacy default stream, handle 0.
        threads: Each thread's state.
    """

    def __init__(self, legacy: Stream) -> None:
        self.live: set[Capture] = set()
        self.legacy = legacy
        self.threads = Threads.beginning_on(legacy)

    @property
    def current(self) -> Stream:
        """This thread's current stream."""
        return self.threads.state.stream

    def refuse(
        self,
        operation: str,
        met: str,
        remedy: str,
        broken: Iterable[Capture] = (),
        *,
        by_mode: bool = False,
    ) -> NoReturn:
        """Raises OperationRefused and marks ``broken`` captures broken by it."""
        where = user_place()
        error = OperationRefused(operation=operation, met=met, remedy=remedy, where=where)
        for capture in broken:
            culprit = f"{operation} at {where}"
            capture.break_by(error, culprit, self.threads.state, by_mode=by_mode)
        raise error

    def refuse_legacy(self, stream: Stream, operation: str) -> None:
        """Refuses the legacy stream while a blocking stream is captured."""
        if stream is not self.legacy or not self.live:
            return
        harmed = [
            capture
            for root in list(self.live)
            for capture in root.open()
            if any(one.blocking for one in list(capture.lanes))
        ]
        if harmed:
            self.refuse(
                operation,
                f"the legacy stream is ordered with the blocking stream of {harmed[0]}",
                "Capture on a non-blocking stream (blocking=False), or work on another stream "
                "meanwhile.",
                harmed,
            )

    def refuse_wait(self, stream: Stream, operation: str, remedy: str = LATER) -> None:
        """Refuses to wait for ``stream`` where a live capture forbids it."""
        if not self.live:
            return
        if stream.lane is not None:
            capture = stream.lane.capture
            taken = "is capturing" if capture.origin is stream else f"takes part in {capture}"
            met = f"{stream} {taken}: its work is recorded, not run"
            self.refuse(operation, met, remedy, [capture])
        self.refuse_legacy(stream, operation)
        self.refuse_unsafe(operation, remedy)

    def refuse_event_wait(self, mark: Mark | None, operation: str) -> None:
        """Refuses to wait for, or to query, an event where a live capture forbids it."""
        if mark is not None:
            self.refuse(
                operation,
                f"the event was recorded in {mark.capture}: nothing runs that it could stand for",
                "Record it again outside the capture.",
                () if mark.capture.over else [mark.capture],
            )
        self.refuse_unsafe(operation, LATER)

    def refuse_device_wait(self, operation: str) -> None:
        """Refuses to wait for everything where a live capture forbids it."""
        self.refuse_wait(self.current, operation)

    def refuse_read(self, operation: str) -> None:
        """Refuses to read or write memory from the host where a live capture forbids it."""
        if self.live:
            state = self.threads.state
            if not state.executing:
                self.refuse_wait(state.stream, operation, READ_LATER)

    def refuse_unsafe(self, operation: str, remedy: str) -> None:
        """Refuses a call that waits, for the captures whose mode covers this thread."""
        state = self.threads.state
        harmed = [
            capture
            for capture in list(self.live)
            if capture.mode == "global"
            or (capture.mode == "thread_local" and capture.thread is state)
        ]
        if harmed:
            first = harmed[0]
            met = f"{first} is live in {first.mode} mode"
            if first.thread is not state:
                met += f" in thread {first.thread.name!r}"
                remedy = f"{remedy.rstrip('.')}, or capture there with mode 'thread_local'."
            self.refuse(operation, met, remedy, harmed, by_mode=True)
