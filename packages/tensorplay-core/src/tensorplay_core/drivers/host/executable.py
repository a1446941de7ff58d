"""A graph that runs: its launch is one closure, and in it one loop over callables."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from tensorplay_core.errors import GraphStateError, ReplayError

from .program import Program, note_failure
from .recording import Node

if TYPE_CHECKING:
    from .capturing import Capturing
    from .recording import Recording, Work
    from .streams import Stream

__all__ = ["Executable"]


class Executable:
    """A program, and the closure that launches it.

    Attributes:
        launch: ``launch(stream=None)``: runs the work, or records it as a child graph if the stream
            is capturing. Raises GraphStateError once closed, StaleGraph if a watched input died,
            LoopLimitExceeded if a while without ``max_steps`` ran away, ReplayError inside a
            replay that it would disturb or never end with, and whatever the work raises.
    """

    launch: Callable[..., None]

    def __init__(
        self, program: Program, capturing: Capturing, resolve: Callable[[object], Stream]
    ) -> None:
        # The closure refers to the cell and not to this object, so that both die by reference
        # counting; replacing what is in the cell reaches launches that were taken out before.
        self._cell = [program]
        self._resolve, self._capturing = resolve, capturing
        self._threads = capturing.threads
        self._around: list[Callable[[Work], Work]] = []
        self.launch = _launcher(self._cell, self._around, capturing, resolve)

    def __repr__(self) -> str:
        return f"<host executable of {len(self.program.steps)} nodes>"

    @property
    def program(self) -> Program:
        """What a launch runs now."""
        return self._cell[0]

    def run_child_by(self, around: Callable[[Work], Work]) -> None:
        """As a child graph of another, from here on, it runs ``around(work)`` in place of its work.

        For a layer whose launches set something first, which only ``launch`` itself would see.
        """
        self._around[:] = [around]

    @property
    def is_within(self) -> bool:
        """True in the midst of this thread's launch of it, or of one that shares memory with it."""
        state = self._threads.state
        return state.executing > 0 and any(part.owner is state for part in self.program.turn.parts)

    @contextmanager
    def turn_for(self, program: Program, doing: str) -> Iterator[None]:
        """This thread's turn to run ``program``, for who copies in before that and out after it.

        As inside a replay: what launches in the midst of this is refused, or its waiting watched.

        Raises:
            ReplayError: This is inside a launch of it, or waiting would be for ever.
        """
        state = self._threads.state
        with program.turn.taken(state, doing, repr(self)):
            state.executing += 1
            try:
                yield
            finally:
                state.executing -= 1

    @contextmanager
    def taken(self, stream: object | None, doing: str) -> Iterator[Callable[[], None]]:
        """The same for who knows no programs: yields the launch. In a capture it is recorded."""
        target = self._capturing.current if stream is None else self._resolve(stream)
        if target.lane is not None and not self._threads.state.executing:
            yield partial(self.launch, stream)
            return
        self._capturing.refuse_legacy(target, doing)
        while True:
            program = self.program
            with self.turn_for(program, doing):
                if self.program is program:  # Else it was updated or closed while this waited.
                    program.refuse_stale()
                    yield program.run
                    return

    def refuse_capturing(self, stream: object | None, operation: str) -> None:
        """Raises OperationRefused if work on ``stream`` would be recorded, or has to wait."""
        target = self._capturing.current if stream is None else self._resolve(stream)
        if target.lane is not None and not self._threads.state.executing:
            self._capturing.refuse(
                operation,
                f"{target} is captured elsewhere, and only the launch would be recorded there",
                "Stage on another stream, or in the thread that captures.",
                [target.lane.capture],
            )
        self._capturing.refuse_legacy(target, operation)

    def replace(self, program: Program) -> None:
        """Runs ``program`` from now on, once the launch under way is done.

        A launch of this very thread that is under way goes on with what it began.
        """
        turn, state = self.program.turn, self._threads.state
        if not (state.executing or state.holding):
            with turn.lock:
                self._cell[0] = program
            return
        try:
            turn.wait(state)
        except ReplayError:  # Neither thread would ever go on. The launch keeps what it runs.
            self._cell[0] = program
        else:
            self._cell[0] = program
            turn.lock.release()

    def difference(self, recording: Recording) -> str:
        """Why it cannot take over ``recording``; ``""`` if it can."""
        mine = self.program.recording
        if mine is None:
            return "the driver does not know what the executable runs: it was adopted, or is closed"
        return mine.difference(recording)

    def upload(self, stream: object | None = None) -> None:
        """Nothing has to be moved; the stream is checked all the same."""
        if stream is not None:
            self._resolve(stream)

    def raw(self) -> Callable[..., None]:
        """The launch itself: a host executable is a callable."""
        return self.launch

    def close(self) -> None:
        """Waits for launches under way, then lets all work go. Idempotent."""
        self.replace(Program((_refuse_closed,), turn=self.program.turn))


def _launcher(
    cell: list[Program],
    around: list[Callable[[Work], Work]],
    capturing: Capturing,
    resolve: Callable[[object], Stream],
) -> Callable[..., None]:
    live, threads = capturing.live, capturing.threads

    def recorded(stream: object) -> bool:
        """True if the launch was recorded as a child graph, False if it is to run now."""
        target = capturing.current if stream is None else resolve(stream)
        lane = target.lane
        if threads.state.executing:
            return False
        if lane is None:
            capturing.refuse_legacy(target, "launching a graph")
            return False
        program = cell[0]
        if program.recording is None or program.recording.has_conditionals():
            closed = program.recording is None
            capturing.refuse(
                "launching a graph",
                f"in {lane.capture} it becomes a child graph, and it "
                + ("is closed or was adopted" if closed else "has conditional nodes"),
                "Capture its work again in place of launching it.",
                [lane.capture],
            )
        lane.capture.holdings.include(program.holdings)
        work = _child(program.steps)
        node = Node(
            "child",
            "graph",
            work=around[0](work) if around else work,
            child=program.recording,
            turn=program.turn,
        )
        lane.capture.add(lane, node)
        return True

    def launch(stream: object | None = None) -> None:
        if (live or stream is not None) and recorded(stream):
            return
        state = threads.state
        nested = state.executing or state.holding
        while True:
            program = cell[0]
            turn = program.turn
            if nested:
                turn.wait(state)
            try:
                with turn.lock:
                    if cell[0] is not program:
                        continue  # Updated or closed while this launch waited.
                    if nested and turn.owner is not None:
                        turn.refuse("replaying", f"a host graph of {len(program.steps)} nodes")
                    if program.holdings.watched:
                        program.refuse_stale()
                    pending = iter(program.steps)
                    turn.owner = state
                    state.executing += 1
                    try:
                        for step in pending:
                            step()
                    except Exception as error:
                        done = len(program.steps) - operator.length_hint(pending)
                        note_failure(error, program.names, done - 1)
                        raise
                    finally:
                        state.executing -= 1
                        turn.owner = None
                    return
            finally:
                if nested:
                    turn.lock.release()

    return launch


def _child(steps: tuple[Work, ...]) -> Work:
    def child_graph() -> None:
        for step in steps:
            step()

    return child_graph


def _refuse_closed() -> NoReturn:
    raise GraphStateError(
        doing="replaying",
        subject="a host executable",
        met="it is closed",
        remedy="Capture and instantiate again, or close it later.",
    )
