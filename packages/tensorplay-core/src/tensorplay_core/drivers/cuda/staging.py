"""Staged launches: fresh inputs in, launch, owned results out, in one crossing into the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import CaptureError, GraphStateError, SignatureMismatch
from tensorplay_core.protocols import StagePlan
from tensorplay_core.signature import differences, facts

from .arrays import View, overlap, view
from .express import express
from .failures import INVALID_CONTEXT
from .launchers import launcher
from .separation import Separation
from .streams import SPECIAL, Event
from .tables import Entry, Kernels
from .track import Track, functions, track

if TYPE_CHECKING:
    from .executable import CudaExecutable
    from .work import Work

__all__ = ["StagedLaunch", "staged"]

Compiled = Callable[[Track, tuple[int, ...], StagePlan], StagePlan]


class StagedLaunch:
    """A plan: ``plan(inputs, *, stream=None) -> results``. See ``staged`` for its arguments.

    Attributes:
        executable: What is launched, in its ``turn``, in ``order``, by the calls of ``hot``.
        static: The graph's input buffers.
        results: The graph's output buffers.
        launcher: Launches with copies around.
        generation: Which update of the executable the plan is of.
        apart: True if all of some addresses are known to lie apart from the buffers.
        context: Handle of the context that it is all in.
    """

    def __init__(
        self,
        work: Work,
        executable: CudaExecutable,
        static: Sequence[Any],
        results: Sequence[Any],
        *,
        check: Callable[[Sequence[Any]], bool],
        pointer: Callable[[Any], int],
        allocate: Callable[[Any], Any],
        using: Callable[[Any], AbstractContextManager[Any]],
        hold: bool,
    ) -> None:
        self._work, self.executable = work, executable
        self.static, self.results = tuple(static), tuple(results)
        self._check, self.pointer, self.allocate = check, pointer, allocate
        self._using, self._hold = using, hold
        self._captured = [facts(array) for array in static]
        self._entries = [_entry(array) for array in static]
        self._sinks = [_entry(array) for array in results]
        self._separation = Separation(self._entries)
        self.apart = self._separation.known_apart
        self.order, self.turn, self.hot = executable.order(), executable.turn, work.hot
        self.context = int(work.context(executable.device))
        self._kernels = Kernels(work, executable.device)
        self.generation = executable.generation
        self.launcher = launcher(self._kernels, executable, self._entries, self._sinks)
        self._held: deque[tuple[Event, object]] = deque()
        self._spare: list[Event] = []
        self._passed = work.cu.raw("cuEventQuery")
        self._exchange = work.cu.raw("cuThreadExchangeStreamCaptureMode")
        executable.depend(self)

    def __call__(self, inputs: Sequence[Any], *, stream: object = None) -> tuple[Any, ...]:
        """Checks, copies, launches.

        Raises:
            SignatureMismatch: Inputs unlike the static ones; nothing was changed.
            CaptureError: The stream is capturing.
            GraphStateError: The graph was closed, or updated since the plan was made.
        """
        if not self._check(inputs):
            self._refuse_unless_equal(inputs)
        sources = tuple(map(self.pointer, inputs))
        keep: object = tuple(inputs)
        copies: Sequence[tuple[int, int, int]] = ()
        results: tuple[Any, ...] = ()
        destinations: tuple[int, ...] = ()
        if self.results or not self.apart(sources):
            with self._using(stream) if stream is not None else nullcontext():
                sources, copies, keep = self._set_apart(inputs, sources)
                results = tuple(map(self.allocate, self.results))
                destinations = tuple(map(self.pointer, results))
        executable, turn = self.executable, self.executable.turn
        target = executable.target(stream)
        if (current := self.hot.context()) != self.context:
            if not current:
                # A stream with a name could be asked all the same; kernels cannot be set.
                executable.mended(INVALID_CONTEXT)
            elif int(target) in SPECIAL:  # Of somebody else's context it would be the stream.
                with self._work.activated(executable.device):
                    return self(inputs, stream=stream)
        # As in a plain launch: the turn without `with`, which costs more than all else here.
        mine = True
        try:
            try:
                turn.take()
            except IndexError:
                mine = False
                mine = turn.wait()
            if executable.closed or executable.dead:
                executable.check()
            if self.generation != executable.generation:
                raise self._outdated()
            code = self._issue(sources, destinations, copies, target)
            if code and executable.mended(code):
                code = self._issue(sources, destinations, copies, target)
            if not code:
                launched = self.launcher
                event = self._note(keep) if self._hold else None
                code = self.order.after(target, launched.native, event, keep=launched)
        finally:
            if mine:
                turn.give(None)
            mine = False
        if code:
            executable.fail(code, "a staged launch")
        return results

    def _issue(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        copies: Sequence[tuple[int, int, int]],
        target: Any,
    ) -> Any:
        try:
            if self.order.capturing(target):
                raise self._inside_a_capture()
            # Copies made ahead of the launch may read what the last one writes.
            code = self.order.before(target, None if copies else self.launcher.native)
            if not code and copies:
                code = self._kernels.copy_now(copies, target)
            return code or self.launcher(sources, destinations, target)
        except self.hot.raised as error:
            return error.status

    def _note(self, keep: object) -> Event:
        """The event that is to stand for this launch; with it, its inputs are let go of."""
        held = self._held
        # The last one stays whatever it says: until now it is the order's.
        if len(held) > 1:
            # Asking an event breaks a capture of another thread, unless this one is relaxed.
            before = self._exchange(self._work.relaxed_mode)[1]
            try:
                while len(held) > 1 and not self._passed(held[0][0].native)[0]:
                    self._spare.append(held.popleft()[0])
            finally:
                self._exchange(before)
        event = self._spare.pop() if self._spare else Event(self._work, self.executable.device)
        held.append((event, keep))
        return event

    def _outdated(self) -> GraphStateError:
        return GraphStateError(
            doing="staging inputs for",
            subject=self.executable.subject,
            met="the graph was updated since this plan was made, and may read other buffers now",
            remedy="Make the plan anew: g.stage(...).",
        )

    def _refuse_unless_equal(self, inputs: Sequence[Any]) -> None:
        found = differences(self._captured, inputs)
        if found:
            raise SignatureMismatch(
                differences=found, subject=self.executable.subject, doing="staging inputs for"
            )

    def _set_apart(
        self, inputs: Sequence[Any], pointers: tuple[int, ...]
    ) -> tuple[tuple[int, ...], list[tuple[int, int, int]], object]:
        """Replaces inputs that a copy of this call would overwrite by copies made ahead of it."""
        clashing = () if self.apart(pointers) else self._separation.clashes(pointers)
        apart = {place: self.allocate(self.static[place]) for place in clashing}
        moved = list(pointers)
        copies = []
        for place, array in apart.items():
            moved[place] = self.pointer(array)
            copies.append((pointers[place], moved[place], self._entries[place].nbytes))
        return tuple(moved), copies, (tuple(inputs), apart)

    def _inside_a_capture(self) -> CaptureError:
        return CaptureError(
            doing="staging inputs for",
            subject=self.executable.subject,
            met="the stream is capturing, and inputs that change at each call cannot be captured",
            remedy="Inside a capture use replay(); stage into the graph that is being captured.",
        )

    def rewrite(self, node: Any, parameters: Any) -> None:
        """Gives a kernel node other parameters. Called in the executable's turn."""
        self.launcher.rewrite(node, parameters)

    def retire(self) -> None:
        """Waits for its launches: the executable runs other work now. Called in its turn."""
        self.order.settle(self.launcher.native)
        self.launcher.close()

    def close(self) -> None:
        """Waits for its launches and ends them. The executable does it when it closes."""
        if not self.executable.closed:
            with self.executable.turn:
                self.order.settle(self.launcher.native)
        self.launcher.close()
        self._held.clear()


def staged(
    work: Work,
    executable: CudaExecutable,
    static: Sequence[Any],
    results: Sequence[Any],
    *,
    check: Callable[[Sequence[Any]], bool],
    pointer: Callable[[Any], int],
    allocate: Callable[[Any], Any],
    using: Callable[[Any], AbstractContextManager[Any]],
    hold: bool = True,
    guard: Callable[..., bool] | None = None,
    plain: Callable[[Sequence[Any]], bool] | None = None,
    fresh: Callable[[], tuple[Any, ...]] | None = None,
    compiled: Compiled | None = None,
) -> StagePlan:
    """A plan of staged launches.

    Args:
        work: The driver.
        executable: What is launched.
        static: The graph's input buffers.
        results: The graph's output buffers.
        check: True if inputs are like ``static``; it may say no to some that are.
        pointer: The address of an input, or of an array that ``allocate`` made.
        allocate: A new array like the one given, for work on the current stream.
        using: Makes a stream current, for the allocations of a call that names one.
        hold: Keep inputs alive until their copies are done. An allocator that orders reuse by the
            launching stream needs no more than the call itself.
        guard: A cheaper check, which gets the inputs as its arguments; it needs ``plain``.
        plain: False if inputs may not be given to ``guard``; asked of those at new addresses.
        fresh: Allocates arrays for all results at once, where that is cheaper than one by one.
        compiled: Makes a plan of a track, of the driver's functions, and of the plan that serves
            what is unusual. It is not asked with ``hold``.

    Returns:
        The plan. For buffers that a copy of bytes cannot fill (with gaps, or overlapping one
        another) it refuses every call with SignatureMismatch, so that full copies are made.
    """
    unfit = _unfit([view(array) for array in static], [view(array) for array in results])
    if unfit:
        return _refusing(unfit, executable.subject)
    plan = StagedLaunch(
        work,
        executable,
        static,
        results,
        check=check,
        pointer=pointer,
        allocate=allocate,
        using=using,
        hold=hold,
    )
    if hold:
        return plan
    if compiled is not None and (found := track(plan)) is not None:
        return compiled(found, functions(work), plan)
    if guard is None or plain is None:
        return plan
    return express(plan, guard, plain, fresh)


def _entry(array: Any) -> Entry:
    facts_of = view(array)
    return Entry(facts_of.pointer, facts_of.nbytes)


def _unfit(static: Sequence[View], results: Sequence[View]) -> list[str]:
    found = [
        f"{name}[{place}]: its strides {one.strides} leave gaps"
        for name, views in (("static_inputs", static), ("results", results))
        for place, one in enumerate(views)
        if not one.dense
    ]
    return found + [
        f"static_inputs[{place}]: it overlaps static_inputs[{before}]"
        for place, one in enumerate(static)
        for before in range(place)
        if overlap(one, static[before])
    ]


def _refusing(unfit: list[str], subject: str) -> StagePlan:
    def plan(inputs: Sequence[Any], *, stream: object = None) -> tuple[Any, ...]:
        raise SignatureMismatch(
            differences=unfit,
            subject=subject,
            doing="staging inputs for",
            remedy="Use dense buffers that do not overlap, or copy into them before replay().",
        )

    return plan
