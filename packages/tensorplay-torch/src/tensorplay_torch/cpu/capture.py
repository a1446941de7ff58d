"""A capture on the CPU: core's host driver records, and a recorder gives it torch's operations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tensorplay_core.errors import CaptureError, StaleGraph, TensorplayError
from tensorplay_core.protocols import (
    Capture,
    CaptureMode,
    CaptureOptions,
    Template,
    Update,
)
from tensorplay_core.runtime import Runtime
from tensorplay_core.unwinding import through
from tensorplay_torch.resources.bases import (
    Bases,
    HostExecutable,
    HostProgram,
    host_driver,
    host_executable,
)
from tensorplay_torch.resources.devices import CPU
from tensorplay_torch.resources.hosting import on_host
from tensorplay_torch.resources.pools import TorchPool
from tensorplay_torch.resources.turns import CLOSED, within
from tensorplay_torch.tracking.liveness import listed
from tensorplay_torch.tracking.operands import Operands
from tensorplay_torch.tracking.surroundings import surroundings

from .isolation import isolated, under_settings
from .recorder import Recorder
from .switches import Held, Wanted

if TYPE_CHECKING:
    import torch

__all__ = ["CpuCapture", "CpuExecutable", "CpuTemplate", "begin"]

_here = threading.local()


class CpuCapture:
    """A capture that ``begin`` began.

    Attributes:
        device: The CPU.
        parent: None; bodies have one.
        base: Core's host driver.
        inner: The same capture, as that driver knows it.
        recorder: What records torch's operations.
    """

    device = CPU
    parent: Capture | None = None

    def __init__(self, base: Runtime, recorder: Recorder, options: CaptureOptions) -> None:
        self.base, self.recorder = base, recorder
        # Generators are the recorder's business; the host driver knows none.
        self._plain = CaptureOptions(enable_annotations=options.enable_annotations)
        self._checks_liveness = options.check_input_liveness
        self._restore: Callable[[], None] | None = None

    @property
    def root(self) -> CpuCapture:
        """This capture: bodies answer with the one they are in."""
        return self

    @property
    def inner(self) -> Capture:
        """See the class."""
        return self._plain.begun[-1]

    @property
    def stream(self) -> int:
        """Handle of its stream, one of the host driver's."""
        return self.inner.stream

    def start(self, stream: object, pool: TorchPool, mode: CaptureMode) -> None:
        """Begins it; see ``begin``. Whatever it raises, ``abort`` is to follow."""
        base = self.base
        self._restore = surroundings()
        base.graph_begin(base.resolve_device(None), stream, on_host(pool, base), mode, self._plain)
        self.recorder.start()
        _here.recording = self

    def end(self) -> CpuTemplate:
        """Ends it and restores what ``begin`` changed, also when it raises.

        Raises:
            UnjoinedWork: A forked stream was not joined.
            CaptureInvalidated: An illegal call broke it, or one was refused and went on.
            OperationRefused: Optimizer state was born in it, or random state was set by hand.
        """
        try:
            template = self.base.graph_end(self.inner)
        except BaseException as error:
            self._leave(error)
            raise
        try:
            self._leave(None)
        except BaseException:
            template.close()
            raise
        operands = self.recorder.operands if self._checks_liveness else None
        made = CpuTemplate(template, operands, self.recorder.default_dtype)
        made.draws = self.recorder.drew
        return made

    def abort(self, error: BaseException | None) -> None:
        """Ends and discards it, as far as it began, bodies first. Raises nothing. Idempotent."""
        if self._plain.begun:
            self.base.graph_abort(self.inner, error)
        try:
            self._leave(error or _discarded())
        except Exception as met:
            if error is not None:
                error.add_note(f"ending the recording met {type(met).__name__}: {met}")

    def explained(self, error: BaseException | None) -> TensorplayError | None:
        """The refusal that the interpreter of TorchScript turned into ``error``; or None."""
        interpreted = isinstance(error, RuntimeError) and "TorchScript interpreter" in str(error)
        return self.recorder.refusal if interpreted else None

    def _leave(self, error: BaseException | None) -> None:
        try:
            self.recorder.stop(error)
        finally:
            through(self._put_back)

    def _put_back(self) -> None:
        if self._restore is not None:
            self._restore()
            self._restore = None
        if getattr(_here, "recording", None) is self:
            _here.recording = None


class CpuTemplate:
    """The host driver's template of recorded operations.

    Attributes:
        inner: That template.
        watched: What each replay has to find alive, if anything.
        dtype: torch's default one at the capture.
        draws: It draws random numbers.
    """

    def __init__(self, inner: Template, watched: Operands | None, dtype: torch.dtype) -> None:
        self.inner, self.watched, self.dtype = inner, watched, dtype
        self.draws = False

    @property
    def node_count(self) -> int:
        """Nodes at the top level."""
        return self.inner.node_count

    def retain(self, owned: object) -> None:
        """Keeps ``owned`` alive as long as the graph can run."""
        self.inner.retain(owned)

    def raw(self) -> object:
        """The host driver's nodes."""
        return self.inner.raw()

    def close(self) -> None:
        """Lets the operations go. An executable made from it stays whole."""
        self.inner.close()


class CpuExecutable:
    """The host driver's executable, with torch's switches off while it runs.

    Its turn is the host driver's: that watches who waits for whom, child graphs and pools included.

    Attributes:
        launch: Runs the operations, or records them as a child graph inside a capture.
    """

    launch: Callable[..., None]

    def __init__(self, base: Runtime, template: CpuTemplate) -> None:
        self.inner: HostExecutable = host_executable(base, template.inner)
        self._watched, self._count = template.watched, template.node_count
        self.inner.run_child_by(partial(under_settings, wanted=Wanted(dtype=template.dtype)))
        launch = isolated(self.inner.launch, template.dtype)
        run = isolated(_run_program, switches=False)
        self._draws, self._dtype = template.draws, template.dtype
        if template.watched is not None:
            launch, run = self._checked(launch), self._checked(run)
        self.launch, self._run = _drawing(launch) if template.draws else launch, run

    def __repr__(self) -> str:
        nodes = f"{self._count} node{'' if self._count == 1 else 's'}"
        return f"a graph of {nodes} on the CPU"

    @property
    def revision(self) -> object:
        """What it runs now, which an update replaces by another; -1 once it is closed."""
        program = self.inner.program
        return CLOSED if program.recording is None else program

    @contextmanager
    def taken(self, stream: object, doing: str) -> Iterator[Callable[[], None]]:
        """This thread's turn to copy in, to call what this yields, which launches, and to copy out.

        In a capture there is no turn to take: all of that is recorded.

        Raises:
            ReplayError: This is inside a launch of it, or waiting would be for ever.
            OperationRefused: The stream is captured, and not by this thread.
        """
        capture = getattr(_here, "recording", None)
        if capture is not None and not host_driver(capture.base).running:
            yield partial(self.launch, stream)
            return
        self.inner.refuse_capturing(stream, "staging inputs")
        program, held = self.inner.program, Held(Wanted(dtype=self._dtype))
        try:
            held.enter()  # Before the turn, as replays do: two would wait for each other.
            with self.inner.turn_for(program, doing):
                yield partial(self._run, program)
        finally:
            held.leave()

    def _checked(self, launch: Callable[..., None]) -> Callable[..., None]:
        def launch_alive(stream: object = None) -> None:
            dead = self._watched.dead() if self._watched is not None else ()
            if dead:
                raise StaleGraph(
                    doing="replaying",
                    subject=repr(self),
                    met=f"{len(dead)} of its inputs died since the capture: {listed(dead)}",
                    remedy="Keep the inputs alive, or capture without check_input_liveness, which "
                    "makes the graph keep them.",
                )
            launch(stream)

        return launch_alive

    def update(self, base: Runtime, template: CpuTemplate) -> Update:
        """Makes it run the work of ``template``, if both keep their inputs alive.

        Raises:
            ReplayError: This is inside a launch of it, which would go on with half of either.
        """
        if self.inner.is_within:
            raise within(repr(self), doing="updating")
        if self._watched is not None or template.watched is not None:
            return Update(in_place=False, reason="liveness of inputs is checked at each replay")
        if template.draws != self._draws:
            return Update(in_place=False, reason="only one of them draws random numbers")
        if template.dtype != self._dtype:
            return Update(in_place=False, reason="they were captured with other default dtypes")
        return base.graph_update(self.inner, template.inner)

    def upload(self, stream: object = None) -> None:
        """Nothing has to be moved; the stream is checked all the same."""
        self.inner.upload(stream)

    def raw(self) -> object:
        """The host driver's executable as it gives it to others."""
        return self.inner.raw()

    def close(self) -> None:
        """Waits for launches under way, then lets the operations go."""
        self.inner.close()


def begin(
    bases: Bases, stream: object, pool: TorchPool, mode: CaptureMode, options: CaptureOptions
) -> CpuCapture:
    """Begins a capture on a stream of the host driver, and records this thread's operations.

    Raises:
        CaptureError: The stream is the legacy one or capturing, or this thread has a capture under
            way.
        ArgumentError: A generator to register is not one of the CPU.
    """
    base = bases("host")
    if getattr(_here, "recording", None) is not None:
        raise CaptureError(
            doing="beginning a capture",
            subject="on the CPU",
            met="this thread has another capture under way",
            remedy="End that first, or capture both works into one graph.",
        )
    made = CpuCapture(base, Recorder(host_driver(base), options, pool.arena), options)
    options.begun.append(made)
    try:
        made.start(stream, pool, mode)
    except BaseException as error:
        through(made.abort, error)
        raise
    return made


def _run_program(program: HostProgram) -> None:
    program.run()


def _drawing(launch: Callable[..., None]) -> Callable[..., None]:
    """``launch`` of a graph that draws random numbers, which the body of a conditional may not."""

    def launch_drawing(stream: object = None) -> None:
        capture = getattr(_here, "recording", None)
        if capture is not None:
            capture.recorder.refuse_draws("the replay of a graph that draws random numbers")
        launch(stream)

    return launch_drawing


def _discarded() -> CaptureError:
    return CaptureError(
        doing="capturing",
        subject="on the CPU",
        met="the capture was discarded",
        remedy="Capture again.",
    )
