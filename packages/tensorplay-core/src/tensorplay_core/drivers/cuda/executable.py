"""Executables: what launches a graph, as cheaply as Python can."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from tensorplay_core.errors import CaptureError, CaptureInvalidated, GraphStateError

from .conditions import Call, alive, elsewhere, in_context, stale
from .direct import direct
from .ending import end
from .failures import CAPTURE_UNSUPPORTED, INVALID_CONTEXT, failure
from .launching import current_of, launcher
from .order import Order
from .streams import Event
from .turn import Turn

if TYPE_CHECKING:
    from .captures import CudaTemplate, Owned
    from .staging import StagedLaunch
    from .work import Work

__all__ = ["CudaExecutable"]

log = logging.getLogger(__name__)


class CudaExecutable:
    """A graph that runs.

    Args:
        work: The driver.
        template: What it was made from. It keeps alive what the template keeps.
        native: The native executable.
        current: Returns the handle of this thread's current stream on the graph's device; None
            asks the driver's own.
        owner: Who destroys the native executable, after ``close``; None if this object does. It
            is kept alive.

    Attributes:
        launch: ``launch(stream=None)``. None is the current stream; a stream object or an int
            handle is that stream. It enqueues and returns.
        target: Turns a stream (None: the current one) into what the calls of ``hot`` take.
        current: Returns the handle of this thread's current stream on the device. Its attribute
            ``function``, if a framework gave it one, is what the launch in C asks in its place.
        elsewhere: Of what ``target`` gives: True if it means another device's stream in this
            thread as it is; None where there is one device.
        template: What it runs now, to make further executables of.
        dead: What a capture that checks liveness read and has died since.
        turn: Taken for each launch and each change of the native executable.
        generation: Counts the updates in place.
        closed: True from ``close`` on.
    """

    launch: Callable[..., None]

    def __init__(
        self,
        work: Work,
        template: CudaTemplate,
        native: Any,
        *,
        current: Callable[[], int] | None = None,
        owner: object = None,
    ) -> None:
        self.template, self.native, self.device = template, native, template.device
        self.subject = f"executable {int(native):#x} on {self.device}"
        self.dead: list[str] = template.owned.dead
        self.turn = Turn(self.subject)
        self.generation = 0
        self.closed = False
        # Staged launches of what it runs now. Each change is one step of a dict's, so that threads
        # that make or drop some meanwhile are in nobody's way.
        self._dependents: dict[int, weakref.ref[StagedLaunch]] = {}
        self._work, self._owner = work, owner
        self._order: Order | None = None
        self._diverted: Call | None = None
        self._retired: list[tuple[Event | None, Owned]] = []
        # What earlier templates own, too: their last launches may be waited for at the end only.
        self._kept: list[Any] = [template.owned, self._retired]
        self._call: Call = work.hot.launch
        self.elsewhere: Callable[[Any], bool] | None = None
        if work.device_count > 1:
            self.elsewhere = elsewhere(work, self.device)
            self._call = in_context(work, self.device, self._call, self.elsewhere)
        if template.owned.watched:
            self._call = alive(self.dead, self.subject, self._call)
        self.current = current or current_of(work, self.device)
        launch, self.target, rebind, failed = launcher(
            work, native, self._call, self.turn, self.current, self
        )
        self.launch, self._rebind = direct(work, self, launch, rebind, failed)
        self._finish = weakref.finalize(
            self, end, work, native, self._owner, self._kept, self.device
        )
        self._finish.atexit = False

    def __repr__(self) -> str:
        return f"<{self.subject}>"

    def order(self) -> Order:
        """Orders launches of this executable with those of others over the same buffers.

        From the first call on every launch, plain or staged, comes after the one before it,
        whatever stream each is on.
        """
        with self.turn:
            self.check_open()
            if self._order is None:
                self._order = Order(self._work, self.device, self.native)
                self._call = self._order.around(self._call, self.native)
                self._rebind(self._diverted or self._call)
            return self._order

    def plain(self) -> bool:
        """True if a launch needs nothing but the driver's own call."""
        return self._call is self._work.hot.launch

    def divert(self, call: Call | None) -> None:
        """Lets launches go through ``call(native, target) -> (code,)``; None ends that.

        An owner that must see launches (torch, for the states of its random generators) needs no
        closure around ``launch`` that would cost each of them a frame. ``call`` is called in the
        executable's turn, and may end its own diversion.
        """
        if not self.closed:
            self._diverted = call
            self._rebind(call or self._call)

    def mended(self, code: Any) -> bool:
        """True if a launch failed for want of a context in this thread, which now has one."""
        if code != INVALID_CONTEXT:
            return False
        own, current = self._work.context(self.device), self._work.cu.cuCtxGetCurrent()
        if not int(current):
            # The thread's first CUDA call: make the device current, as CUDA's runtime would.
            self._work.cu.cuCtxSetCurrent(own, about=self.subject)
            return True
        # A finaliser that ran since the launch may have done so.
        return int(current) == int(own)

    def fail(self, code: Any, call: str) -> NoReturn:
        """Raises what a launch met."""
        if int(code) == CAPTURE_UNSUPPORTED:
            raise CaptureInvalidated(
                doing="replaying",
                subject=self.subject,
                met="the stream is capturing, and CUDA captures no launch of a graph",
                remedy="Replay it outside of the capture, or capture its work itself there.",
            )
        raise failure(self._work.native, call, int(code), about=self.subject)

    def upload(self, stream: object = None) -> None:
        """Moves to the device what the first launch would have to move, ordered on ``stream``.

        Raises:
            GraphStateError: It is closed.
        """
        target = self.target(stream)
        with self.turn, self._work.activated(self.device):
            self.check_open()
            self._work.cu.cuGraphUpload(self.native, target, about=self.subject)

    def raw(self) -> int:
        """The native executable, a ``cudaGraphExec_t`` as int.

        Raises:
            GraphStateError: It is closed.
        """
        self.check_open()
        return int(self.native)

    def check_open(self) -> None:
        """Raises GraphStateError if it is closed."""
        if self.closed:
            raise _closed(self.subject)

    def check(self) -> None:
        """Raises GraphStateError if it is closed, StaleGraph if memory that it reads has died."""
        self.check_open()
        if self.dead:
            raise stale(self.subject, self.dead)

    def adopt(self, template: CudaTemplate) -> None:
        """It runs ``template`` now, refreshed in place. Called in its turn.

        What it ran before may still be running: that is kept until an event says otherwise, or
        its owner, who has to wait for the same.
        """
        if self._kept[0]:
            mark = self._mark() if self._owner is None else None
            self._retired.append((mark, self._kept[0]))
        self.template, self._kept[0] = template, template.owned
        self.generation += 1
        for dependent in self.staged():
            dependent.retire()
            self._dependents.pop(id(dependent), None)

    @contextmanager
    def taken(self, stream: object, doing: str) -> Iterator[Callable[[], None]]:
        """This thread's turn to copy into the graph's buffers and to launch, by what this yields.

        What is enqueued on the stream meanwhile comes after all launches before.

        Raises:
            ReplayError: This is in the midst of the thread's own call.
            CaptureError: The stream is capturing.
            GraphStateError: It is closed.
        """
        order, target = self.order(), self.target(stream)
        with self.turn, self._work.activated(self.device):
            self.check()
            self._wait_for_launches(order, target, doing)
            yield partial(self._launch_to, target)

    def follow(self, stream: object, doing: str) -> None:
        """What is enqueued on the stream from here on comes after all launches so far.

        Raises:
            CaptureError: The stream is capturing.
        """
        order, target = self.order(), self.target(stream)
        with self.turn, self._work.activated(self.device):
            self._wait_for_launches(order, target, doing)

    def _wait_for_launches(self, order: Order, target: Any, doing: str) -> None:
        hot = self._work.hot
        try:
            if hot.capturing(target):
                raise CaptureError(
                    doing=doing,
                    subject=self.subject,
                    met="the stream is capturing, and inputs that change at each call cannot be "
                    "captured",
                    remedy="Inside a capture capture the work itself.",
                )
            if self._diverted is not None:
                order.unseen()
            code = order.before(target)
        except hot.raised as error:
            code = error.status
        if code:
            self.fail(code, doing)

    def _launch_to(self, target: Any) -> None:
        try:
            result = self._call(self.native, target)
        except self._work.hot.raised as error:
            result = (error.status,)
        if result and result[0]:
            self.fail(result[0], "cuGraphLaunch")

    def depend(self, staged: StagedLaunch) -> None:
        """``staged`` launches what it runs now, and ends with that."""
        number, known = id(staged), self._dependents
        known[number] = weakref.ref(staged, lambda _: known.pop(number, None))

    def staged(self) -> list[StagedLaunch]:
        """Those that depend on it."""
        refs = list(self._dependents.values())
        return [one for ref in refs if (one := ref()) is not None]

    @property
    def unsettled(self) -> bool:
        """True if it keeps what only earlier launches used."""
        return bool(self._retired)

    def settle(self, wait: Callable[[], object]) -> None:
        """Its owner waits for all launches so far: lets go of what only earlier ones used."""
        if not self._retired:
            wait()
            return
        with self.turn:
            waiting = {id(one) for one in self._retired if one[0] is None}
        wait()
        with self.turn:
            self._retired[:] = [one for one in self._retired if id(one) not in waiting]

    def _mark(self) -> Event:
        """An event after all launches so far; lets go of what others have passed."""
        work, event = self._work, Event(self._work, self.device)
        service = work.service(self.device)
        with work.inside(self.device):
            passed = work.cu.raw("cuEventQuery")
            self._retired[:] = [
                one for one in self._retired if one[0] is None or passed(one[0].native)[0]
            ]
            work.cu.cuGraphUpload(self.native, service, about=self.subject)
            work.cu.cuEventRecord(event.native, service, about=self.subject)
        return event

    def close(self, *, idle: bool = False) -> None:
        """Waits for launches under way, then destroys it. Idempotent.

        Args:
            idle: It was never launched, so there is nothing to wait for.
        """
        subject = self.subject

        def refuse(*_: object) -> NoReturn:
            raise _closed(subject)

        with self.turn:
            if self.closed:
                return
            self.closed = True
            self._rebind(refuse)
        # Without its closures the object is no cycle, and goes when its last user does.
        self.launch = self.target = self._rebind = refuse
        for dependent in self.staged():
            dependent.close()
        if idle and (finish := self._finish.detach()) is not None:
            end(*finish[2], idle=True)
        else:
            self._finish()
        self._retired, self._kept = [], []
        self._order = self._owner = None


def _closed(subject: str) -> GraphStateError:
    return GraphStateError(
        doing="using",
        subject=subject,
        met="it is closed",
        remedy="Capture the graph again after reset() or close().",
    )
