"""The captures under way on one driver object: begun, ordered, ended."""

from __future__ import annotations

import threading
import weakref

from tensorplay_core.errors import (
    ArgumentError,
    CaptureError,
    ConditionalError,
    GraphStateError,
)
from tensorplay_core.places import user_place
from tensorplay_core.protocols import CAPTURE_MODES, CaptureMode, CaptureOptions

from .capture import Capture
from .memory import Pool
from .rules import Rules
from .streams import Mark, Stream
from .template import Template

__all__ = ["Capturing"]


class Capturing(Rules):
    """The captures under way, and the streams that can be captured."""

    def __init__(self) -> None:
        super().__init__(Stream(self, legacy=True, blocking=True))
        self.streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self.streams[0] = self.legacy
        self._lock = threading.RLock()

    def stream(self, name: str, blocking: bool) -> Stream:
        """A new stream."""
        made = Stream(self, name=name, blocking=blocking)
        self.streams[made.handle] = made
        return made

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
            ArgumentError: There is no such mode.
            CaptureError: It is the legacy stream, or it is capturing, or this is inside work that
                runs.
        """
        if mode not in CAPTURE_MODES:
            raise ArgumentError(
                doing="beginning a capture on",
                subject=str(stream),
                met=f"the mode is {mode!r}",
                remedy=f"Pass one of {', '.join(map(repr, CAPTURE_MODES))}.",
            )
        if self.threads.state.executing:
            raise CaptureError(
                doing="beginning a capture on",
                subject=str(stream),
                met="this call is made by work that runs, and such work records nothing",
                remedy="Begin captures outside kernels and submitted work.",
            )
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
            capture.options.begun.append(capture)
            capture.entered = True
            capture.join(stream)
            self.live.add(capture)
            return capture

    def finish(self, capture: Capture) -> None:
        """Takes a capture or body out of service, those inside it first. Idempotent."""
        for inner in reversed(list(capture.open())):
            if inner.over:
                continue
            self.live.discard(inner)
            if inner.previous is not None:
                inner.thread.stream = inner.previous
            inner.leave()

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
        if source.root not in self.live and not source.over:
            raise ArgumentError(
                doing="ordering",
                subject=str(stream),
                met="the event belongs to another host driver object",
                remedy="Take streams and events from one driver.",
            )
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
