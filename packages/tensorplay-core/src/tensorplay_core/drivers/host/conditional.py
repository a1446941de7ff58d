"""Conditional nodes on the host: if, else, while and switch, nested as deep as one likes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tensorplay_core.errors import ArgumentError, ConditionalError, PredicateError, TensorplayError
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.places import user_place
from tensorplay_core.protocols import ConditionalKind

from .buffers import DTYPES, Buffer, flat, memory_of
from .capture import Capture
from .graph import Graphs
from .recording import Conditional, Node, Reader, Recording
from .streams import Lane

__all__ = ["Conditionals"]

INDEX_DTYPES = frozenset({"int32", "uint32", "int64", "uint64"})


class Conditionals(Graphs):
    """The host driver, whole."""

    @hookimpl
    def tensorplay_conditional_open(
        self,
        capture: Capture,
        kind: ConditionalKind,
        predicate: Any,
        branches: int,
        first: bool,
        max_steps: int | None,
    ) -> tuple[Capture, ...]:
        """Adds the node to the current stream if that is in the capture, else to its own.

        ``predicate`` is one Bool (an index: one 32- or 64-bit integer) in a buffer or other memory,
        or a callable without arguments that returns it.
        """
        self._own_capture(capture)
        self._must_record(capture, f"opening a {kind.value} node in")
        _check(kind, branches, first, max_steps)
        read, memory = self._reader(capture, kind, predicate)
        conditional = Conditional(
            kind=kind,
            read=read,
            memory=memory,
            bodies=tuple(Recording() for _ in range(branches)),
            first=first,
            max_steps=max_steps,
            where=user_place(),
        )
        lane = self._lane(capture)
        capture.add(lane, Node("conditional", kind.value, conditional=conditional))
        bodies = tuple(
            Capture.body(capture, self.stream(f"{kind.value} body"), conditional, branch)
            for branch in range(branches)
        )
        for body in bodies:
            body.site = lane, lane.frontier
        if kind is ConditionalKind.WHILE:
            bodies[0].predicate = predicate
        return bodies

    @hookimpl
    def tensorplay_conditional_enter(self, body: Capture) -> None:
        """Records the body from now on."""
        self._own_capture(body)
        parent = body.parent
        if parent is None or body.entered or parent.inner is not None:
            met = "it is no body"
            if parent is not None:
                met = "it was entered before" if body.entered else f"{parent.inner} is still open"
            raise _misplaced("entering", body, met)
        self._must_record(parent, f"entering {body} in")
        body.refuse_strays("between its node and the body")
        body.entered = True
        body.allocate_from(parent.pool)
        parent.inner = body
        body.join(body.origin)
        body.thread = self._capturing.threads.state
        body.previous, body.thread.stream = body.thread.stream, body.origin

    @hookimpl
    def tensorplay_conditional_set(self, body: Capture, predicate: Any) -> None:
        """Samples the predicate after all work so far of the body."""
        self._own_capture(body)
        self._must_record(body, "setting the condition of")
        conditional = body.conditional
        if conditional is None or conditional.kind is not ConditionalKind.WHILE:
            raise _misplaced("setting the condition of", body, "it is not the body of a while node")
        read, _ = self._reader(body, ConditionalKind.WHILE, predicate)
        _sample(self._lane(body), conditional, read)

    @hookimpl
    def tensorplay_conditional_exit(self, body: Capture) -> None:
        """Ends the body; the stream that was current when it was entered is current again."""
        self._own_capture(body)
        if body.conditional is None or not body.entered or body.over:
            met = "it is no body" if body.conditional is None else "it is not open"
            raise _misplaced("leaving", body, met)
        if body.inner is not None:
            raise _misplaced("leaving", body, f"{body.inner} inside it is still open")
        try:
            body.check("leaving a body of")
            body.refuse_strays("while the body was open")
            body.refuse_unjoined()
            if body.conditional.kind is ConditionalKind.WHILE:
                self._close_loop(body, body.conditional)
        except TensorplayError as error:
            self._break(body, error)
            raise
        finally:
            self._capturing.finish(body)

    @hookimpl
    def tensorplay_conditional_read(self, predicate: Any) -> int:
        """Reads a predicate or index now."""
        self._capturing.refuse_read("reading a predicate")
        if callable(predicate):
            return int(predicate())
        memory = _element(predicate, INDEX_DTYPES | {"bool"}, "a predicate", "one Bool or integer")
        return int(flat(memory)[0])

    def _close_loop(self, body: Capture, conditional: Conditional) -> None:
        """Samples the loop's predicate at the end of its body, unless that was done last."""
        lane = body.lanes[body.origin]
        nodes = body.recording.nodes
        samples = {
            index
            for index, node in enumerate(nodes)
            if node.sample is not None and node.sample[0] is conditional.loop
        }
        if lane.frontier and samples.issuperset(lane.frontier):
            return
        known = conditional.memory is not None and conditional.max_steps is None
        if known and not samples and not body.wrote:
            raise ConditionalError(
                doing="leaving",
                subject=f"{body} opened at {conditional.where}",
                met="no work in it writes the predicate, and none sets the condition",
                remedy="Write the predicate in the body (say so: launch(..., writes=(flag,))), set "
                "the condition, or bound the loop with max_steps.",
            )
        _sample(lane, conditional, conditional.read)

    def _lane(self, capture: Capture) -> Lane:
        """The current stream's part in the capture, else that of the stream that began it."""
        lane = self.current.lane
        if lane is not None and lane.capture is capture:
            return lane
        return capture.lanes[capture.origin]

    def _must_record(self, capture: Capture, doing: str) -> None:
        capture.check(doing)
        if not capture.entered or capture.over:
            met = "it is over" if capture.over else "it was not entered"
            raise _misplaced(doing, capture, met)

    def _reader(
        self, capture: Capture, kind: ConditionalKind, predicate: Any
    ) -> tuple[Reader, memoryview | None]:
        """How captured work reads ``predicate``, and its memory if that is known."""
        if callable(predicate):
            return partial(_called, predicate), None
        switch = kind is ConditionalKind.SWITCH
        memory = _element(
            predicate,
            INDEX_DTYPES if switch else frozenset({"bool"}),
            f"the predicate of a {kind.value} node",
            "one 32- or 64-bit integer" if switch else "one Bool",
        )
        if isinstance(predicate, Buffer):
            capture.operand(predicate)
        return partial(flat(memory).__getitem__, 0), memory


def _sample(lane: Lane, conditional: Conditional, read: Reader) -> None:
    node = Node("kernel", "set condition", sample=(conditional.loop, read))
    lane.capture.add(lane, node)


def _called(predicate: Callable[[], Any]) -> int:
    return int(predicate())


def _check(kind: ConditionalKind, branches: int, first: bool, max_steps: int | None) -> None:
    most = {ConditionalKind.IF: 2, ConditionalKind.WHILE: 1}.get(kind)
    met = ""
    if branches < 1 or (most is not None and branches > most):
        met = f"it has {branches} bodies"
    elif kind is not ConditionalKind.WHILE and (first or max_steps is not None):
        met = f"first is {first} and max_steps is {max_steps}"
    elif max_steps is not None and max_steps < 1:
        met = f"max_steps is {max_steps}"
    if met:
        raise ArgumentError(
            doing="opening",
            subject=f"a {kind.value} node",
            met=met,
            remedy="An if has 1 or 2 bodies, a switch 1 or more, a while 1; only a while takes "
            "first, and max_steps of at least 1.",
        )


def _element(predicate: object, dtypes: frozenset[str], what: str, wanted: str) -> memoryview:
    """The memory of a predicate.

    Raises:
        PredicateError: It is not one element of one of ``dtypes``.
    """
    try:
        memory = memory_of(predicate)
        dtype = DTYPES[memory.format]
        if dtype in dtypes and memory.nbytes == memory.itemsize:
            return memory
        met, cause = f"it is {dtype} of shape {memory.shape}", None
    except ArgumentError as error:
        met, cause = f"it is {predicate!r}: {error.met}", error
    raise PredicateError(
        doing="reading",
        subject=what,
        met=met,
        remedy=f"Pass {wanted} in a buffer of the host driver, or a callable that returns it.",
    ) from cause


def _misplaced(doing: str, capture: Capture, met: str) -> ConditionalError:
    return ConditionalError(
        doing=doing,
        subject=str(capture),
        met=met,
        remedy="Open, then enter each body at most once, and leave the innermost first.",
    )
