"""Streams and events: the order of work, and which of them a capture is recording."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from tensorplay_core.protocols import CaptureMode

    from .capture import Capture
    from .capturing import Capturing
    from .template import Template
    from .turn import Turn

__all__ = ["Event", "Lane", "Mark", "Stream", "ThreadState", "Threads"]

# Of the process, not of a driver object: a handle of another driver object is never mistaken.
_serials = itertools.count(1)


class Mark(NamedTuple):
    """A point in a capture: what an event stands for there.

    Attributes:
        capture: The capture.
        frontier: Indices of the nodes that work after this point depends on.
        seen: How much of each stream's work comes before this point.
    """

    capture: Capture
    frontier: tuple[int, ...]
    seen: Mapping[Stream, int]


@dataclass(slots=True, eq=False)
class Lane:
    """One stream's part in a capture.

    Attributes:
        capture: The capture.
        stream: The stream.
        where: Where it was forked into the capture, ``""`` for the stream that began it.
        frontier: Indices of the nodes that its next work depends on.
        work: How much it has added; being forked counts, so that an idle fork has to be joined.
        seen: How much of each stream's work its next work comes after.
    """

    capture: Capture
    stream: Stream
    where: str = ""
    frontier: tuple[int, ...] = ()
    work: int = 1
    seen: dict[Stream, int] = field(default_factory=dict)

    def mark(self) -> Mark:
        """The point reached."""
        return Mark(self.capture, self.frontier, {**self.seen, self.stream: self.work})

    def follow(self, mark: Mark) -> None:
        """Orders what comes next after ``mark``."""
        self.frontier = tuple(sorted({*self.frontier, *mark.frontier}))
        for stream, work in mark.seen.items():
            self.seen[stream] = max(work, self.seen.get(stream, 0))

    def add(self, index: int) -> None:
        """Node ``index`` was added to the stream."""
        self.frontier = (index,)
        self.work += 1


@dataclass(slots=True, eq=False)
class ThreadState:
    """What the driver knows of one thread.

    Attributes:
        name: The thread's name.
        stream: Its current stream.
        executing: How deep it is in running work; inside work, buffers may be read.
        holding: How deep it is in writing memory of pools beside their graphs.
        waiting: What it waits for inside either.
    """

    name: str
    stream: Stream
    executing: int = 0
    holding: int = 0
    waiting: Turn | None = None


class Threads(threading.local):
    """Each thread's own state, which begins on the legacy stream.

    Attributes:
        state: This thread's. Once it is there, to read it runs no Python.
    """

    legacy: ClassVar[Stream]
    state: ThreadState

    @classmethod
    def beginning_on(cls, legacy: Stream) -> Threads:
        """The states of a driver whose legacy stream this is."""
        own: type[Threads] = type("Threads", (cls,), {"legacy": legacy})
        return own()

    def __getattr__(self, name: str) -> ThreadState:
        if name != "state":
            raise AttributeError(name)
        # Not in `__init__`, inside which a finaliser would find half of it. One may ask for it
        # here, too: the first one made is the thread's.
        made = ThreadState(threading.current_thread().name, self.legacy)
        return self.__dict__.setdefault("state", made)  # type: ignore[no-any-return]


class Stream:
    """A queue of work in order. Outside a capture, work runs when it is submitted.

    Made by ``driver.stream()``. Anything that takes a stream takes one, by ``__cuda_stream__``.

    Attributes:
        handle: Its number; 0 is the legacy default stream.
        blocking: True if it is ordered with the legacy stream, which is then unusable while this
            one is captured.
    """

    __slots__ = ("__weakref__", "_capturing", "blocking", "handle", "lane", "name")

    def __init__(
        self, capturing: Capturing, *, name: str = "", blocking: bool = False, legacy: bool = False
    ) -> None:
        self._capturing = capturing
        self.handle = 0 if legacy else next(_serials)
        self.blocking = blocking
        self.name = name
        self.lane: Lane | None = None

    def __repr__(self) -> str:
        return f"<host {self}>"

    def __str__(self) -> str:
        if self.handle == 0:
            return "the legacy default stream"
        return f"stream {self.handle}" + (f" ({self.name})" if self.name else "")

    def __cuda_stream__(self) -> tuple[int, int]:
        """Protocol version and handle."""
        return (0, self.handle)

    @property
    def capturing(self) -> bool:
        """True if its work is being recorded."""
        return self.lane is not None

    def wait_event(self, event: Event) -> None:
        """Orders work submitted here from now on after ``event``.

        If the event was recorded in a capture, this stream is forked into it.

        Raises:
            OperationRefused: The event and this stream are not of the same capture, and cannot be.
            CaptureInvalidated: The capture was broken before.
        """
        self._capturing.order(self, event.mark, event.recorded, f"{self}.wait_event")

    def wait_stream(self, other: Stream) -> None:
        """Orders work submitted here from now on after all work so far on ``other``.

        Raises:
            OperationRefused: The streams are not of the same capture, and cannot be.
            CaptureInvalidated: The capture was broken before.
        """
        mark = self._capturing.mark(other)
        self._capturing.order(self, mark, True, f"{self}.wait_stream({other})")

    def record_event(self, event: Event | None = None) -> Event:
        """Records ``event`` (a new one when None) here and returns it."""
        event = event or Event(self._capturing)
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Waits for its work, which outside a capture is done already.

        Raises:
            OperationRefused: It is capturing, or a live capture forbids this thread to wait.
        """
        self._capturing.refuse_wait(self, f"{self}.synchronize")

    def begin_capture(self, mode: CaptureMode = "global") -> None:
        """Records this stream's work from now on: the low-level door, below graphs and pools.

        The current stream stays what it is, and buffers made meanwhile come from no pool.

        Raises:
            CaptureError: This is the legacy stream, or it is capturing.
        """
        self._capturing.begin(self, mode=mode, owner="Stream.begin_capture")

    def end_capture(self) -> Template:
        """Ends what ``begin_capture`` began and returns what was recorded.

        Raises:
            GraphStateError: This stream did not begin a capture that way.
            CaptureError: As from the end of any capture; see the subclasses.
        """
        return self._capturing.end_own(self)


class Event:
    """A point in a stream that others can wait for. Made by ``driver.event()``.

    Attributes:
        mark: Where in a capture it was last recorded, None outside any.
        recorded: True once it was recorded at all.
    """

    __slots__ = ("__weakref__", "_capturing", "mark", "recorded")

    def __init__(self, capturing: Capturing) -> None:
        self._capturing = capturing
        self.mark: Mark | None = None
        self.recorded = False

    def record(self, stream: Stream | None = None) -> None:
        """Stands from now on for all work so far on ``stream`` (None: the current one).

        Raises:
            OperationRefused: The stream is the legacy one and a blocking stream is captured.
            CaptureInvalidated: The stream's capture was broken before.
        """
        self.mark = self._capturing.mark(stream or self._capturing.current)
        self.recorded = True

    def wait(self, stream: Stream | None = None) -> None:
        """``stream.wait_event(self)`` (None: the current stream)."""
        (stream or self._capturing.current).wait_event(self)

    def query(self) -> bool:
        """True: work outside a capture is done when submitted.

        Raises:
            OperationRefused: It was recorded in a capture, or one forbids this thread to ask.
        """
        self._capturing.refuse_event_wait(self.mark, "event.query")
        return True

    def synchronize(self) -> None:
        """Waits for what it stands for.

        Raises:
            OperationRefused: It was recorded in a capture, or one forbids this thread to wait.
        """
        self._capturing.refuse_event_wait(self.mark, "event.synchronize")
