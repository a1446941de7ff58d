"""From a recording to what a launch runs: one callable a node, in order, nothing in between."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tensorplay_core.errors import LoopLimitExceeded, StaleGraph
from tensorplay_core.protocols import ConditionalKind

from .holdings import Holdings
from .turn import Turn, turn_of

if TYPE_CHECKING:
    from .recording import Conditional, Node, Reader, Recording, Work
    from .template import Template

__all__ = ["Program", "note_failure"]


class Program:
    """What one executable runs. Immutable, so that an update is one assignment.

    Attributes:
        turn: Taken while it runs, with those of its child graphs.
        steps: What it runs.
        names: Of the steps.
        holdings: What it keeps alive.
        recording: What it was made from; None if the driver does not know what it runs.
    """

    __slots__ = ("holdings", "names", "recording", "steps", "turn")

    def __init__(
        self,
        steps: tuple[Work, ...],
        *,
        names: tuple[str, ...] = (),
        holdings: Holdings | None = None,
        recording: Recording | None = None,
        turn: Turn,
    ) -> None:
        self.steps, self.names, self.recording, self.turn = steps, names, recording, turn
        self.holdings = holdings or Holdings()

    @classmethod
    def of(cls, template: Template, loop_limit: Callable[[], int]) -> Program:
        """The program of a template.

        Raises:
            GraphStateError: The template is closed.
        """
        recording = template.recording("instantiating")
        # Graphs that share a pool share its memory, so they take turns.
        turn = template.pool.turn if template.pool is not None else Turn()
        steps = _Compiler(loop_limit).steps(recording)
        return cls(
            steps,
            names=_names(recording),
            holdings=template.holdings,
            recording=recording,
            turn=turn_of((turn, *recording.turns())),
        )

    def run(self) -> None:
        """Runs the steps, in a turn that the caller has taken."""
        run(self.steps, self.names)

    def refuse_stale(self) -> None:
        """Raises StaleGraph if storage that is watched has died."""
        dead = [str(one) for one in self.holdings.watched if one.storage() is None]
        if dead:
            raise StaleGraph(
                doing="replaying",
                subject=f"a host graph of {len(self.steps)} nodes",
                met=f"{len(dead)} of its inputs died since the capture: {'; '.join(dead)}",
                remedy="Keep the inputs alive, or capture without check_input_liveness, which "
                "makes the graph keep them.",
            )


class _Compiler:
    """Turns nodes into steps. Each while has a cell of its own: does its body run again?"""

    def __init__(self, loop_limit: Callable[[], int]) -> None:
        self._loop_limit = loop_limit
        self._cells: dict[object, list[int]] = {}

    def steps(self, recording: Recording) -> tuple[Work, ...]:
        return tuple(map(self._step, recording.nodes))

    def _step(self, node: Node) -> Work:
        if node.conditional is not None:
            return self._decision(node.conditional)
        if node.sample is not None:
            loop, read = node.sample
            return partial(_sample, self._cells[loop], read)
        assert node.work is not None
        return node.work

    def _decision(self, conditional: Conditional) -> Work:
        if conditional.kind is ConditionalKind.WHILE:
            cell = self._cells[conditional.loop] = [0]
            body = self._body(conditional.bodies[0])
            return partial(_repeat, conditional, body, cell, self._loop_limit)
        bodies = tuple(map(self._body, conditional.bodies))
        if conditional.kind is ConditionalKind.SWITCH:
            return partial(_switch, conditional.read, bodies)
        return partial(_branch, conditional.read, bodies[0], bodies[1] if bodies[1:] else None)

    def _body(self, recording: Recording) -> Work:
        steps = self.steps(recording)
        return steps[0] if len(steps) == 1 else partial(run, steps, _names(recording))


def run(steps: tuple[Work, ...], names: tuple[str, ...]) -> None:
    """Runs steps in order; an exception of one gets a note that says which."""
    pending = iter(steps)
    try:
        for step in pending:
            step()
    except Exception as error:
        note_failure(error, names, len(steps) - operator.length_hint(pending) - 1)
        raise


def note_failure(error: BaseException, names: tuple[str, ...], index: int) -> None:
    """Says on ``error`` at which node it was raised."""
    if index < len(names):
        error.add_note(f"while replaying node {index} ({names[index]})")


def _names(recording: Recording) -> tuple[str, ...]:
    return tuple(node.name for node in recording.nodes)


def _sample(cell: list[int], read: Reader) -> None:
    cell[0] = read()


def _branch(read: Reader, then: Work, other: Work | None) -> None:
    # Sampled once: a branch that rewrites the predicate does not make the other run too.
    if read():
        then()
    elif other is not None:
        other()


def _switch(read: Reader, bodies: tuple[Work, ...]) -> None:
    index = read()
    if 0 <= index < len(bodies):
        bodies[index]()


def _repeat(
    conditional: Conditional, body: Work, cell: list[int], loop_limit: Callable[[], int]
) -> None:
    cell[0] = conditional.first or conditional.read()
    steps, most = 0, conditional.max_steps or loop_limit()
    while cell[0]:
        if steps >= most:
            if conditional.max_steps is None:
                raise _endless(conditional, steps)
            return
        body()
        steps += 1


def _endless(conditional: Conditional, steps: int) -> LoopLimitExceeded:
    place = f" opened at {conditional.where}" if conditional.where else ""
    return LoopLimitExceeded(
        doing="replaying",
        subject=f"the while node{place}",
        met=f"its body ran {steps} times, the cap of the host driver (loop_limit), and its "
        "predicate is still true",
        remedy="Make the body write the predicate, or bound the loop: max_steps=n takes the place "
        "of the cap, of however many steps.",
    )
