"""A running capture, or one body inside it: its streams, what they recorded, what broke it."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorplay_core.errors import CaptureInvalidated, ConditionalError, UnjoinedWork
from tensorplay_core.places import user_place
from tensorplay_core.protocols import CaptureMode, CaptureOptions, ConditionalKind

from .buffers import Buffer, overlap
from .holdings import Holdings
from .recording import Conditional, Node, Recording
from .streams import Lane, Stream, ThreadState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorplay_core.errors import TensorplayError

    from .memory import Pool
    from .template import Template

__all__ = ["Capture", "Offence"]

_serials = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Offence:
    """What broke a capture first.

    Attributes:
        error: What was raised then.
        culprit: The call or body at fault, and where.
        thread: Name of the thread that made the call, ``""`` if that is the capture's own.
        by_mode: True if a narrower mode would have allowed the call.
    """

    error: TensorplayError
    culprit: str
    thread: str
    by_mode: bool


class Capture:
    """A capture, or (with a ``parent``) one body of a conditional node in it.

    Attributes:
        device: ``"host"``.
        origin: The stream that began it.
        parent: The capture this is a body of.
        root: The outermost capture; itself, if it is no body.
        conditional: Of a body: what it is a body of.
        role: Of a body: which one.
        mode: Whose unsafe calls break it.
        options: How it is made.
        pool: Where its allocations go; None is memory outside any pool.
        owner: Who began it and has to end it; None is the graph hooks.
        thread: The thread that began it.
        previous: The stream to make current again at its end; None leaves what is current.
        lanes: The streams in it.
        recording: What was recorded.
        holdings: What the graph will keep alive (of the root).
        offence: What broke it (of the root); None if it is whole.
        inner: The body that is being captured in it.
        entered: True once it records (a body does from its enter on).
        over: True once it was ended or discarded.
        wrote: Of a while body: True if captured work writes its predicate.
        predicate: Of a while body: what it samples at its end, in use until then.
        site: Of a body: the stream's part in its parent that its node stands in, and what came last
            there when the node was added.
        adopted: True if the graph hooks took it in.
        template: What an adopted capture became when its owner ended it.
        serial: Number of the root, from 1.
    """

    device = "host"

    def __init__(
        self,
        origin: Stream,
        *,
        mode: CaptureMode,
        thread: ThreadState,
        options: CaptureOptions | None = None,
        pool: Pool | None = None,
        owner: str | None = None,
    ) -> None:
        self.origin, self.mode, self.thread, self.pool = origin, mode, thread, pool
        self.options = options or CaptureOptions()
        self.owner = owner
        self.parent: Capture | None = None
        self.root = self
        self.conditional: Conditional | None = None
        self.role = ""
        self.previous: Stream | None = None
        self.lanes: dict[Stream, Lane] = {}
        self.recording = Recording()
        self.holdings = Holdings()
        self.offence: Offence | None = None
        self.inner: Capture | None = None
        self.entered = self.over = self.wrote = self.adopted = False
        self.predicate: object = None
        self.site: tuple[Lane, tuple[int, ...]] | None = None
        self.template: Template | None = None
        self._told: list[Pool] = []
        self.serial = next(_serials)
        self.lock = threading.RLock()

    @classmethod
    def body(
        cls, parent: Capture, origin: Stream, conditional: Conditional, branch: int
    ) -> Capture:
        """Body ``branch`` of ``conditional``, not yet entered."""
        root = parent.root
        made = cls(origin, mode=root.mode, thread=root.thread, options=root.options)
        made.parent, made.root, made.conditional = parent, root, conditional
        made.role, made.recording = conditional.role(branch), conditional.bodies[branch]
        made.holdings, made.serial, made.lock = root.holdings, root.serial, root.lock
        return made

    def __repr__(self) -> str:
        return f"<host capture: {self}>"

    def __str__(self) -> str:
        if self.conditional is not None:
            kind = self.conditional.kind
            if kind is ConditionalKind.WHILE:
                return "the body of a while node"
            return f"the {self.role} body of a {kind.value} node"
        return f"the capture on {self.origin}"

    @property
    def stream(self) -> int:
        """Handle of the stream that is captured."""
        return self.origin.handle

    def chain(self) -> Iterator[Capture]:
        """Itself, then its parents outward."""
        capture: Capture | None = self
        while capture is not None:
            yield capture
            capture = capture.parent

    def open(self) -> Iterator[Capture]:
        """Itself, then the bodies being captured in it, inward."""
        capture: Capture | None = self
        while capture is not None:
            yield capture
            capture = capture.inner

    @property
    def loop(self) -> object | None:
        """Of a while body: what stands for it in its nodes and its pool."""
        conditional = self.conditional
        if conditional is None or conditional.kind is not ConditionalKind.WHILE:
            return None
        return conditional.loop

    @property
    def loops(self) -> tuple[object, ...]:
        """The while bodies it is in, itself first."""
        return tuple(loop for capture in self.chain() if (loop := capture.loop) is not None)

    def allocate_from(self, pool: Pool | None) -> None:
        """Allocates from ``pool`` from now on."""
        self.pool = pool
        if pool is not None:
            for capture in self.chain():
                if (loop := capture.loop) is not None:
                    pool.enter_loop(loop)
                    capture._told.append(pool)

    def join(self, stream: Stream, where: str = "") -> Lane:
        """Takes ``stream`` in."""
        lane = Lane(self, stream, where)
        self.lanes[stream] = stream.lane = lane
        return lane

    def leave(self) -> None:
        """Lets its streams go: they run work at once again."""
        for stream in self.lanes:
            stream.lane = None
        self.lanes = {}
        for pool in self._told:
            pool.leave_loop(self.loop)
        self._told, self.predicate, self.site = [], None, None
        # Events and tracebacks may outlive the capture and refer to it: it must hold nothing then.
        self.recording, self.holdings, self.offence = Recording(), Holdings(), None
        if self.parent is not None and self.parent.inner is self:
            self.parent.inner = None
        self.over = True

    def add(self, lane: Lane, node: Node) -> Node:
        """Records ``node`` after all work so far on the lane's stream.

        Raises:
            CaptureInvalidated: The capture was broken before.
        """
        self.check(f"recording {node.name} into")
        with self.lock:
            node.before = lane.frontier
            self.recording.nodes.append(node)
            lane.add(len(self.recording.nodes) - 1)
        return node

    def operand(self, buffer: Buffer) -> Buffer:
        """What captured work shall hold of ``buffer``: its memory, without keeping it in use.

        Storage born elsewhere is kept or watched as the options say. Storage born in this capture
        is not: its pool may reuse it as soon as the user lets it go.
        """
        storage, options = buffer.storage, self.options
        if storage is None:
            return buffer
        if storage.born != self.serial:
            if options.check_input_liveness:
                self.holdings.watch(storage, f"{buffer!r} used at {user_place()}")
            elif options.track_operands:
                self.holdings.keep(storage)
        return buffer.alias()

    def refuse_strays(self, when: str) -> None:
        """Raises ConditionalError if anything came between the body's node and the body.

        It stands after the node, so it would run after the body, whatever the user wrote.
        """
        if self.site is None or self.site[0].frontier == self.site[1]:
            return
        raise ConditionalError(
            doing="capturing",
            subject=str(self),
            met=f"work was issued on {self.site[0].stream} {when}, and would run after the body",
            remedy="Issue it before the conditional is opened, inside a body, or after them all.",
        )

    def written(self, memory: memoryview) -> None:
        """Captured work writes ``memory``: marks the while bodies whose predicate that may be."""
        for capture in self.chain():
            conditional = capture.conditional
            if conditional is not None and conditional.memory is not None and not capture.wrote:
                capture.wrote = overlap(memory, conditional.memory)

    def break_by(
        self, error: TensorplayError, culprit: str, thread: ThreadState, *, by_mode: bool = False
    ) -> None:
        """Marks the whole capture broken; what broke it first counts."""
        if self.root.offence is None:
            other = "" if thread is self.root.thread else thread.name
            self.root.offence = Offence(error, culprit, other, by_mode)

    def check(self, doing: str) -> None:
        """Raises CaptureInvalidated, which names the first illegal call, if there was one."""
        offence = self.root.offence
        if offence is None:
            return
        error, culprit = offence.error, offence.culprit
        remedy = f"Take that out of the capture. {error.remedy}"
        if offence.thread:
            culprit += f" in thread {offence.thread!r}"
        if offence.thread and offence.by_mode:
            remedy = (
                "Capture with capture_error_mode='thread_local', which other threads cannot break, "
                "or keep them from waiting for the device meanwhile."
            )
        raise CaptureInvalidated(
            doing=doing,
            subject=str(self.root),
            met=f"{culprit} broke it: {error.met}",
            remedy=remedy,
        ) from error

    def refuse_unjoined(self) -> None:
        """Raises UnjoinedWork if a forked stream has work that the origin does not come after."""
        seen = self.lanes[self.origin].seen
        loose = [
            lane
            for stream, lane in self.lanes.items()
            if stream is not self.origin and seen.get(stream, 0) < lane.work
        ]
        if loose:
            named = ", ".join(
                f"{lane.stream}" + (f", forked at {lane.where}" if lane.where else "")
                for lane in loose
            )
            raise UnjoinedWork(
                doing="ending",
                subject=str(self),
                met=f"not joined back: {named}",
                remedy=f"Make {self.origin} wait for it before the end: wait_stream or an event.",
            )
