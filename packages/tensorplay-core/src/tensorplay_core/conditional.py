"""Conditional bodies inside a capture: context managers, and the seed-named methods beneath them.

Three forms, one engine. This module has the two that live on a graph; ``control_flow`` builds the
functions ``cond()`` and ``while_loop()`` on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from .errors import ArgumentError, ConditionalError, GraphStateError
from .protocols import Capture, ConditionalKind
from .runtime import Runtime
from .timeline import Timeline

__all__ = ["Body", "ConditionalMethods", "Loop"]


class Body:
    """One body of a conditional node: a context manager, entered once or not at all.

    Work issued inside it is captured into the body and runs at replay as the node decides.
    """

    def __init__(
        self, graph: ConditionalMethods, capture: Capture, kind: ConditionalKind, role: str
    ) -> None:
        self._graph, self._capture, self._kind, self._role = graph, capture, kind, role
        self._entered = False

    def __repr__(self) -> str:
        return f"<{self._role} body of a {self._kind.value} node in {self._graph!r}>"

    def __enter__(self) -> Body:
        self._graph._enter_body(self)
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is None:
            self._graph._exit_body(self)
        else:
            self._graph._poison(exception)


class Loop(Body):
    """The body of a while node."""

    def condition(self, scalar_pred: Any) -> None:
        """Samples ``scalar_pred`` here: does the body run again? The last sample decides.

        Args:
            scalar_pred: One Bool on the capturing device.

        Raises:
            PredicateError: It is not one Bool on the capturing device.
            ConditionalError: This loop is not the innermost open body.
        """
        self._graph._set_condition(self, scalar_pred)


class ConditionalMethods:
    """The conditional part of a graph, over the capture that is under way."""

    _runtime: Runtime
    _capture: Capture | None
    _bodies: list[Body]
    _poisoned: BaseException | None
    _timeline: Timeline | None

    @contextmanager
    def if_then(self, scalar_pred: Any) -> Iterator[Body]:
        """Gates the work captured inside on ``scalar_pred``, sampled when a replay gets there.

        Args:
            scalar_pred: One Bool on the capturing device.

        Raises:
            PredicateError: It is not one Bool on the capturing device.
            GraphStateError: No capture is under way.
            UnsupportedByDriver: The driver has no conditionals.
        """
        (body,) = self._open(ConditionalKind.IF, scalar_pred, ("then",))
        with body:
            yield body

    @contextmanager
    def if_else(self, scalar_pred: Any) -> Iterator[tuple[Body, Body]]:
        """Two bodies, of which a replay runs one: ``with g.if_else(p) as (then, other): ...``.

        Each is entered with a ``with`` of its own; one that is not entered is empty. The predicate
        is sampled once, so a branch that rewrites it does not run the other. Other work goes before
        or after the bodies, not between them: the node stands as a whole where it was opened.

        Args:
            scalar_pred: One Bool on the capturing device.

        Raises:
            PredicateError: It is not one Bool on the capturing device.
            ConditionalError: Work was captured between the opening and a body.
            GraphStateError: No capture is under way.
            UnsupportedByDriver: The driver has no conditionals.
        """
        then, other = self._open(ConditionalKind.IF, scalar_pred, ("then", "else"))
        yield then, other

    @contextmanager
    def while_loop(
        self, scalar_pred: Any, *, first: bool = False, max_steps: int | None = None
    ) -> Iterator[Loop]:
        """Repeats the work captured inside while ``scalar_pred`` is true.

        It is sampled before the first run and again at the end of the body, unless the body's last
        work was ``loop.condition(p)``.

        Args:
            scalar_pred: One Bool on the capturing device.
            first: Run the body at least once a replay, whatever the predicate holds.
            max_steps: End the loop after so many runs of the body, at least 1.

        Raises:
            PredicateError: It is not one Bool on the capturing device.
            ConditionalError: The body neither writes the predicate nor sets a condition.
            ArgumentError: ``max_steps`` is not a positive integer.
            GraphStateError: No capture is under way.
            UnsupportedByDriver: The driver has no conditionals.
        """
        (body,) = self._open(
            ConditionalKind.WHILE, scalar_pred, ("body",), first=first, max_steps=max_steps
        )
        assert isinstance(body, Loop)
        with body:
            yield body

    @contextmanager
    def switch(self, index: Any, n: int) -> Iterator[tuple[Body, ...]]:
        """``n`` bodies, of which a replay runs number ``index``; out of range it runs none.

        Args:
            index: One 32- or 64-bit integer on the capturing device.
            n: How many bodies, at least 1.

        Raises:
            PredicateError: ``index`` is not one integer on the capturing device.
            ArgumentError: ``n`` is not a positive integer.
            ConditionalError: Work was captured between the opening and a body.
            GraphStateError: No capture is under way.
            UnsupportedByDriver: The driver has no conditionals.
        """
        _positive("n", n)
        yield self._open(ConditionalKind.SWITCH, index, tuple(f"case {i}" for i in range(n)))

    def begin_capture_to_if_node(self, scalar_pred: Any) -> None:
        """Opens an ``if`` body: work until ``end_capture_to_conditional_node`` goes into it.

        Args:
            scalar_pred: One Bool on the capturing device, sampled when a replay gets there.

        Raises: as ``if_then``.
        """
        self._open(ConditionalKind.IF, scalar_pred, ("then",))[0].__enter__()

    def begin_capture_to_while_node(self, scalar_pred: Any) -> None:
        """Opens a ``while`` body: work until ``end_capture_to_conditional_node`` repeats.

        Args:
            scalar_pred: One Bool on the capturing device, sampled before each run of the body.

        Raises: as ``while_loop``.
        """
        self._open(ConditionalKind.WHILE, scalar_pred, ("body",))[0].__enter__()

    def set_conditional_handle_for_current_node(self, scalar_pred: Any) -> None:
        """Samples ``scalar_pred`` here for the innermost open body, which must be a ``while``.

        Args:
            scalar_pred: One Bool on the capturing device.

        Raises:
            PredicateError: It is not one Bool on the capturing device.
            ConditionalError: No body is open, or it is an ``if``'s, which samples once before it.
        """
        if not self._bodies:
            raise _misplaced(self, "no conditional body is open")
        self._set_condition(self._bodies[-1], scalar_pred)

    def end_capture_to_conditional_node(self) -> None:
        """Closes the innermost open body; work goes to its parent again.

        Raises:
            ConditionalError: No body is open, or a while body cannot end its loop.
        """
        if not self._bodies:
            raise _misplaced(self, "no conditional body is open")
        self._exit_body(self._bodies[-1])

    def _open(
        self,
        kind: ConditionalKind,
        predicate: Any,
        roles: tuple[str, ...],
        *,
        first: bool = False,
        max_steps: int | None = None,
    ) -> tuple[Body, ...]:
        if max_steps is not None:
            _positive("max_steps", max_steps)
        parent, timeline = self._innermost(), self._timeline
        before = timeline.mark() if timeline is not None else 0
        captures = self._runtime.conditional_open(
            parent, kind, predicate, len(roles), first=first, max_steps=max_steps
        )
        if timeline is not None:
            timeline.opened(before, captures)
        shape = Loop if kind is ConditionalKind.WHILE else Body
        return tuple(
            shape(self, capture, kind, role) for capture, role in zip(captures, roles, strict=True)
        )

    def _innermost(self) -> Capture:
        if self._capture is None:
            raise GraphStateError(
                doing="adding a conditional to",
                subject=repr(self),
                met="no capture is under way",
                remedy="Use conditionals inside `with graph(g):`; outside, plain if and while do.",
            )
        if self._poisoned is not None:
            raise ConditionalError(
                doing="adding to",
                subject=repr(self),
                met=f"a conditional body failed before with {type(self._poisoned).__name__}",
                remedy="Leave the capture (it is discarded) and capture again.",
            ) from self._poisoned
        return self._bodies[-1]._capture if self._bodies else self._capture

    def _enter_body(self, body: Body) -> None:
        if body._entered:
            raise _misplaced(self, f"the {body._role} body was entered before")
        if self._innermost() is not body._capture.parent:
            raise _misplaced(self, f"the {body._role} body belongs to another open body")
        try:
            self._runtime.conditional_enter(body._capture)
        except BaseException as error:
            self._poison(error)  # Its node would go without the body.
            raise
        body._entered = True
        self._bodies.append(body)
        if self._timeline is not None:
            self._timeline.enter(body._capture)

    def _exit_body(self, body: Body) -> None:
        if not self._bodies or self._bodies[-1] is not body:
            raise _misplaced(self, f"the {body._role} body is not the innermost open one")
        try:
            self._runtime.conditional_exit(body._capture)
        except BaseException as error:
            self._poison(error)
            raise
        self._bodies.pop()
        if self._timeline is not None:
            self._timeline.leave()

    def _set_condition(self, body: Body, predicate: Any) -> None:
        if self._innermost() is not body._capture:
            raise _misplaced(self, f"the {body._role} body is not the innermost open one")
        if body._kind is not ConditionalKind.WHILE:
            raise _misplaced(self, f"a {body._kind.value} samples its predicate once, before it")
        self._runtime.conditional_set(body._capture, predicate)

    def _poison(self, error: BaseException) -> None:
        self._poisoned = self._poisoned or error


def _positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(
            doing="reading",
            subject=f"argument {name}",
            met=f"it is {value!r}",
            remedy="Pass an integer of at least 1.",
        )


def _misplaced(graph: object, met: str) -> ConditionalError:
    return ConditionalError(
        doing="capturing a conditional of",
        subject=repr(graph),
        met=met,
        remedy="Enter each body once, close the innermost first, set conditions of while bodies.",
    )
