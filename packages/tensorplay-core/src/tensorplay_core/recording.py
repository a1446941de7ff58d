"""How a graph captures: begin, end, and the unwinding of whatever breaks between them."""

from __future__ import annotations

import weakref
from abc import abstractmethod

from . import reclaim, registry, scopes, unwinding
from .conditional import ConditionalMethods
from .errors import ArgumentError, ConditionalError, EmptyCapture, GraphStateError
from .pool import SharedPool, acquire
from .protocols import (
    CAPTURE_MODES,
    Capture,
    CaptureMode,
    CaptureOptions,
    Device,
    Executable,
    Template,
)
from .registry import Presence, presence
from .staging import ConvertingStage
from .timeline import Timeline

__all__ = ["CaptureMethods"]


class CaptureMethods(ConditionalMethods):
    """The capturing part of a graph, and the states it goes through."""

    # No ABC beneath the abstract methods: its metaclass makes isinstance() of a graph Python code,
    # which takes a microsecond of each capture.

    _device: Device | None
    _keep_graph: bool
    _closed: bool
    _serial: int
    _generators: tuple[object, ...]
    _orphaned: str
    _retained: list[object]

    # Of a graph that captured nothing.
    _capture: Capture | None = None
    _template: Template | None = None
    _executable: Executable | None = None
    _staged: tuple[ConvertingStage, tuple[Executable, int]] | None = None
    _shared_pool: SharedPool | None = None
    _poisoned: BaseException | None = None
    _timeline: Timeline | None = None
    _thread: weakref.ref[Presence] | None = None
    _hold: object = None

    def _forget(self) -> None:
        """Is as if it had captured nothing. Idempotent."""
        if self._executable is not None:
            self.__dict__.pop("replay", None)
        self._capture = self._template = self._executable = self._staged = None
        self._shared_pool = self._poisoned = self._timeline = self._thread = self._hold = None
        self._bodies, self._retained = [], []

    def __repr__(self) -> str:
        place = f" on {self._device}" if self._device is not None else ""
        nodes = ""
        if self._template is not None:
            count = self._template.node_count
            nodes = f", {count} node{'' if count == 1 else 's'}"
        return f"<CUDAGraph #{self._serial}{place} by {self._runtime.name}: {self._state()}{nodes}>"

    def _state(self) -> str:
        if self._closed:
            return "closed"
        if self._capture is not None:
            return "capturing"
        if self._executable is not None:
            return "ready"
        return "captured" if self._template is not None else "empty"

    def capture_begin(
        self,
        pool: object = None,
        capture_error_mode: CaptureMode = "global",
        stream: object = None,
    ) -> None:
        """Begins the capture: work of this thread on the capture stream is recorded, not run.

        It waits for the device first. The capture stream is current in this thread until
        ``capture_end``.

        Args:
            pool: None for a private pool; an id of ``graph_pool_handle()``, another graph, its
                ``pool_id``, or the framework's pool object, to share that pool.
            capture_error_mode: ``"global"`` fails the capture at an unsafe call of any thread,
                ``"thread_local"`` of this thread only, ``"relaxed"`` of none.
            stream: The stream to capture on; None is a side stream, the same for one pool. The
                legacy default stream cannot capture.

        Raises:
            GraphStateError: The graph is capturing, already captured, or closed.
            ArgumentError: No such capture mode.
            PoolMismatch: The pool is another driver's or on another device.
            CaptureError: The stream cannot capture.
        """
        self._begin(pool, capture_error_mode, stream)

    def _begin(
        self,
        pool: object,
        mode: CaptureMode,
        stream: object,
        track_operands: bool = True,
        check_input_liveness: bool = False,
        enable_annotations: bool = False,
    ) -> None:
        if mode not in CAPTURE_MODES:
            raise ArgumentError(
                doing="beginning the capture of",
                subject=repr(self),
                met=f"capture_error_mode is {mode!r}",
                remedy=f"Pass one of {', '.join(map(repr, CAPTURE_MODES))}.",
            )
        if self._state() != "empty":
            raise self._wrong_state(
                "beginning the capture of", "Call reset() first, or capture into a new CUDAGraph."
            )
        runtime = self._runtime
        device = self._device if self._device is not None else runtime.resolve_device(None)
        timeline = None
        if enable_annotations:
            runtime.require("graph_mark", "recording annotations")
            timeline = Timeline(runtime.graph_mark, scopes.current_scope())
        begun: list[Capture] = []
        shared, hold = SharedPool(runtime), object()
        try:
            acquire(runtime, pool, device, shared)
            reclaim.hold(hold)
            if stream is None:
                stream = runtime.side_stream(device, shared.pool)
            self._capture = runtime.graph_begin(
                device,
                stream,
                shared.pool,
                mode,
                CaptureOptions(
                    track_operands=track_operands,
                    check_input_liveness=check_input_liveness,
                    enable_annotations=enable_annotations,
                    generators=self._generators,
                    timeline=timeline,
                    begun=begun,
                ),
            )
            self._shared_pool, self._hold = shared, hold
            here = presence()
            self._device, self._thread = device, weakref.ref(here)
            self._timeline, self._orphaned = timeline, ""
            registry.enter_capture(self, here)
            if timeline is not None:
                timeline.begin(self._capture)
        except BaseException as error:
            # An interrupt on the way back: the driver began it, and it never got here.
            if self._capture is None and begun:
                self._capture = begun[-1]
            self._shared_pool, self._hold = shared, hold
            unwinding.through(self._give_up, error)
            raise

    def _move(self, device: object) -> None:
        """Binds an empty graph to ``device``."""
        if self._state() == "empty":
            self._device = self._runtime.resolve_device(device)

    def capture_end(self) -> None:
        """Ends the capture and instantiates it (unless ``keep_graph``), so no replay pays for it.

        Raises:
            GraphStateError: No capture is under way, or another thread began it.
            ConditionalError: A conditional body is open or failed.
            UnjoinedWork: A forked stream was not joined.
            CaptureInvalidated: An illegal call broke the capture.
            EmptyCapture: Nothing was recorded.
        """
        self._end(allow_empty=False)

    def _end(self, *, allow_empty: bool) -> None:
        capture = self._capture
        if capture is None:
            raise self._wrong_state("ending the capture of", "Call capture_begin() first.")
        if not self._is_mine():
            raise GraphStateError(
                doing="ending the capture of",
                subject=repr(self),
                met="another thread began it",
                remedy="End it in that thread: the capture stream is current there.",
            )
        refused = self._unfinished_bodies()
        if refused is not None:
            self._abort(refused)
            raise refused
        try:
            self._template = template = self._runtime.graph_end(capture)
            self._leave(completed=True)
            self._accept(template, allow_empty=allow_empty)
        except BaseException as error:
            unwinding.through(self._undo_end, error)
            raise

    def _is_mine(self) -> bool:
        """True if this thread began the capture."""
        return self._thread is not None and self._thread() is presence()

    def _undo_end(self, error: BaseException) -> None:
        """Nothing is left of a capture whose end failed. Idempotent."""
        if self._capture is None:
            self.reset()
        elif isinstance(error, Exception) or self._template is not None:
            self._leave(completed=False)  # The driver's end discards what it cannot complete.
        else:
            self._give_up(error)  # It may have been interrupted before it began.

    def _accept(self, template: Template, *, allow_empty: bool) -> None:
        if template.node_count == 0 and not allow_empty:
            raise EmptyCapture(
                doing="ending the capture of",
                subject=repr(self),
                met="nothing was recorded",
                remedy="Issue the work inside the capture, on its stream and device "
                "(another device's or stream's work is not recorded), or pass allow_empty=True.",
            )
        for owned in self._retained:
            template.retain(owned)
        if not self._keep_graph:
            self.instantiate()
        if self._timeline is not None:
            self._tell_annotations(self._timeline, template)

    def _tell_annotations(self, timeline: Timeline, template: Template) -> None:
        if timeline.failed is not None:
            raise timeline.failed
        runtime = self._runtime
        known = self._executable is not None and runtime.can("executable_id")
        scopes.record(
            self._serial,
            timeline.applied(runtime.graph_topology(template)),
            runtime.executable_id(self._executable) if known and self._executable else 0,
        )

    def _unfinished_bodies(self) -> ConditionalError | None:
        if self._poisoned is not None:
            met = f"a conditional body failed with {type(self._poisoned).__name__}"
        elif self._bodies:
            met = f"{len(self._bodies)} conditional bodies are open, the {self._bodies[-1]!r} last"
        else:
            return None
        error = ConditionalError(
            doing="ending the capture of",
            subject=repr(self),
            met=met,
            remedy="Close each body before the capture ends; the capture was discarded.",
        )
        error.__cause__ = self._poisoned
        return error

    def _leave(self, *, completed: bool) -> None:
        """The capture is over, for the driver too. Idempotent, so that it may be run again."""
        self._bodies = []
        if self._timeline is not None:
            self._timeline.end()
        thread = self._thread() if self._thread is not None else None
        registry.leave_capture(self, thread, completed=completed)
        shared, hold = self._shared_pool, self._hold
        if not completed and shared is not None:
            shared.release()
        reclaim.release(hold)
        self._capture = None
        if not completed:
            template = self._template
            self._forget()
            if template is not None:
                reclaim.dispose(template.close)

    def _give_up(self, error: BaseException | None) -> BaseException | None:
        """Ends the capture as far as it was begun; returns what ``error`` stands for."""
        explained = None
        if self._capture is not None:
            explained = self._runtime.graph_abort(self._capture, error)
        self._leave(completed=False)
        return explained

    def _abort(self, error: BaseException | None) -> BaseException | None:
        """Discards the capture under way, if there is one; returns what ``error`` stands for."""
        if self._capture is None:
            return None
        return unwinding.through(self._give_up, error)

    def abandon(self, thread: str) -> None:
        """Discards the capture under way because the thread that made it has ended."""
        if self._capture is not None:
            self._abort(None)
            self._orphaned = thread

    @abstractmethod
    def instantiate(self) -> None:
        """Makes what was captured executable."""

    @abstractmethod
    def close(self) -> None:
        """Ends the graph for good."""

    @abstractmethod
    def reset(self) -> None:
        """Destroys what was captured."""

    def _wrong_state(self, doing: str, remedy: str) -> GraphStateError:
        met = f"it is {self._state()}"
        if self._closed:
            remedy = "Capture into a new CUDAGraph: what is closed stays so."
        if self._orphaned:
            met += f": thread {self._orphaned!r} ended inside its capture, which was discarded"
        return GraphStateError(doing=doing, subject=repr(self), met=met, remedy=remedy)
