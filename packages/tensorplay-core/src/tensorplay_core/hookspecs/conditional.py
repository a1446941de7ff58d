"""Hooks of conditional nodes: opened at the frontier of a capture, their bodies captured in turn.

The order of calls is ``open``, then for each body that is used ``enter``, ``set`` as
often as wanted, ``exit``.
A body that is never entered is left empty and must be legal as such.
"""

from __future__ import annotations

from typing import Any

from tensorplay_core.protocols import Capture, ConditionalKind

from .markers import hookspec


@hookspec(firstresult=True)
def tensorplay_conditional_open(
    capture: Capture,
    kind: ConditionalKind,
    predicate: Any,
    branches: int,
    first: bool,
    max_steps: int | None,
) -> tuple[Capture, ...]:
    """Adds a conditional node after all work captured so far; returns its bodies.

    The predicate is sampled once, when the replay reaches the node. ``branches``: IF 1 or 2,
    WHILE 1, SWITCH n. For a WHILE only, ``first`` runs the body at least once whatever the
    predicate holds, and ``max_steps`` ends the loop after so many runs of the body.
    Raises PredicateError unless the predicate is one Bool (SWITCH: one 32- or 64-bit integer) on
    the capture's device.
    """


@hookspec(firstresult=True)
def tensorplay_conditional_enter(body: Capture) -> None:
    """Starts capturing the body and makes its stream current in this thread."""


@hookspec(firstresult=True)
def tensorplay_conditional_set(body: Capture, predicate: Any) -> None:
    """Samples ``predicate`` at this point of a WHILE body: does the body run again?

    The last sample in a run of the body decides.
    """


@hookspec(firstresult=True)
def tensorplay_conditional_exit(body: Capture) -> None:
    """Ends the body and makes its parent's stream current again.

    A WHILE body whose last work is not a ``set`` samples the predicate it was opened with; one
    that neither set nor wrote it is refused with ConditionalError.
    """


@hookspec(firstresult=True)
def tensorplay_conditional_read(predicate: Any) -> int:
    """Reads a predicate or index back to the host, waiting for it. Not inside a capture."""
