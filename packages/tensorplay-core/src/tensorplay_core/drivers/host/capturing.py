"""What is being captured on one driver object, and what that forbids.

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

import threading
import weakref
from collections.abc import Iterable
from typing import NoReturn

from tensorplay_core.errors import CaptureError, ConditionalError, GraphStateError, OperationRefused
from tensorplay_core.protocols import CaptureMode, CaptureOptions

from .capture import Capture
from .memory import Pool
from .streams import Mark, Stream, Threads
from .template import Template
from .where import user_place

__all__ = ["Capturing"]

LATER = "Move it after the capture."
READ_LATER = (
    "Read it after a replay; to branch on it inside the graph use cond(), while_loop() or a "
    "conditional body."
)


class Capturing:
    """The streams of one driver object and the captures under way on them.

    Attributes:
        live: The captures under way, bodies not counted. Falsy is the common case.
        legacy: The legacy default stream, handle 0.
        threads: Each thread's state.
        streams: The streams by handle.
    """

    def __init__(self) -> None:
        self.live: set[Capture] = set()
        self.legacy = Stream(self, legacy=True, blocking=True)
        self.threads = Threads(self.legacy)
        self.streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self.streams[0] = self.legacy
        self._lock = threading.RLock()

    @property
    def current(self) -> Stream:
        """This thread's current stream."""
        return self.threads.state.stream

    def stream(self, name: str, blocking: bool) -> Stream:
        """A new stream."""
        made = Stream(self, name=name, blocking=blocking)
        self.streams[made.handle] = made
        return made

    # Beginning and ending.

    def begin(
        self,
        stream: Stream,
        *,
        mode: CaptureMode,
        pool: Pool | None = None,
        options: CaptureOptions | None = None,
        owner: str | None = None,
    ) -> Capture:
        """Records the work of ``stream`` from now on.

        Raises:
            CaptureError: It is the legacy stream, or it is capturing.
        """
        with self._lock:
            if stream is self.legacy:
                raise CaptureError(
                    doing="beginning a capture on",
                    subject=str(stream),
                    met="the legacy stream encompasses the others and cannot capture",
                    remedy="Capture on a side stream: pass stream=None, or driver.stream().",
                )
            if stream.lane is not None:
                raise CaptureError(
                    doing="beginning a capture on",
                    subject=str(stream),
                    met=f"it takes part in {stream.lane.capture} already",
                    remedy="End that capture first, or capture on another stream.",
                )
            capture = Capture(
                stream,
                mode=mode,
                thread=self.threads.state,
                options=options,
                pool=pool,
                owner=owner,
            )
            capture.entered = True
            capture.join(stream)
            self.live.add(capture)
            return capture

    def finish(self, capture: Capture) -> None:
        """Takes a capture or body out of service, those inside it first. Never raises."""
        for inner in reversed(list(capture.open())):
            if inner.over:
                continue
            inner.leave()
            self.live.discard(inner)
            if inner.previous is not None:
                inner.thread.stream = inner.previous

    def end(self, capture: Capture) -> Template:
        """Ends ``capture`` in any case, and returns what it recorded if it is good.

        Raises:
            CaptureInvalidated: It was broken.
            ConditionalError: A body of it is open.
            UnjoinedWork: A forked stream was not joined.
            CaptureError: This is another thread than the one that began it, and the mode is not
                relaxed.
        """
        try:
            capture.check("ending")
            if capture.inner is not None:
                raise ConditionalError(
                    doing="ending",
                    subject=str(capture),
                    met=f"{capture.inner} is still open",
                    remedy="Close every body before the capture ends; the capture was discarded.",
                )
            if capture.mode != "relaxed" and self.threads.state is not capture.thread:
                raise CaptureError(
                    doing="ending",
                    subject=str(capture),
                    met=f"thread {capture.thread.name!r} began it in {capture.mode} mode",
                    remedy="End it in that thread, or begin it with mode 'relaxed'.",
                )
            capture.refuse_unjoined()
            return Template(capture.recording, capture.holdings, capture.pool)
        finally:
            self.finish(capture)

    def end_own(self, stream: Stream) -> Template:
        """Ends the capture that ``Stream.begin_capture`` began on ``stream``.

        Raises: as ``end``, and GraphStateError if there is none.
        """
        capture = stream.lane.capture if stream.lane is not None else None
        if capture is None or capture.origin is not stream or capture.owner is None:
            met = "it is not capturing"
            if capture is not None:
                met = f"it takes part in {capture}, which began elsewhere"
            raise GraphStateError(
                doing="ending the capture of",
                subject=str(stream),
                met=met,
                remedy="End a capture where it began: end_capture() on the stream of "
                "begin_capture(), a graph's capture through the graph.",
            )
        template = self.end(capture)
        if capture.adopted:
            capture.template = template
        return template

    # Order.

    def mark(self, stream: Stream) -> Mark | None:
        """All work so far on ``stream``; None outside a capture.

        Raises:
            CaptureInvalidated: Its capture was broken before.
        """
        lane = stream.lane
        if lane is None:
            self.refuse_legacy(stream, "event.record")
            return None
        lane.capture.check("recording an event in")
        return lane.mark()

    def order(self, stream: Stream, mark: Mark | None, recorded: bool, operation: str) -> None:
        """Orders ``stream`` after ``mark``, forking it into the mark's capture if need be."""
        lane = stream.lane
        if mark is None:
            if lane is None:
                self.refuse_legacy(stream, operation)
                return
            what = "outside its capture" if recorded else "by nobody: it was never recorded"
            self.refuse(
                operation,
                f"{stream} is capturing, and the event was recorded {what}",
                "Fork from a stream of the same capture. Work before the capture is done before "
                "any replay, so nothing inside has to wait for it.",
                [lane.capture],
            )
        source = mark.capture
        if source.over:
            self.refuse(
                operation,
                f"the event was recorded in {source}, which is over",
                "Record the event again.",
                [lane.capture] if lane is not None else [],
            )
        source.check("ordering a stream after")
        if lane is None:
            if stream is self.legacy:
                self.refuse(
                    operation,
                    f"it would fork the legacy stream into {source}",
                    "Fork a stream of your own: driver.stream().",
                    [source],
                )
            lane = source.join(stream, user_place())
        elif lane.capture is not source:
            self.refuse(
                operation,
                f"it would merge {lane.capture} with {source}",
                "Keep captures apart. A body needs no wait for work before its node, and work "
                "after the node needs none for the body: the node stands in that order as a whole.",
                [lane.capture, source],
            )
        lane.follow(mark)

    # Refusals.

    def refuse(
        self, operation: str, met: str, remedy: str, broken: Iterable[Capture] = ()
    ) -> NoReturn:
        """Raises OperationRefused and marks ``broken`` captures broken by it."""
        where = user_place()
        error = OperationRefused(operation=operation, met=met, remedy=remedy, where=where)
        for capture in broken:
            capture.break_by(error, f"{operation} at {where}", self.threads.state)
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
            self.refuse(
                operation,
                f"{stream} takes part in {stream.lane.capture}: its work is recorded, not run",
                remedy,
                [stream.lane.capture],
            )
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
                remedy += " Or capture there with mode 'thread_local'."
            self.refuse(operation, met, remedy, harmed)
