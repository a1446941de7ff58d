"""A running capture on CUDA: torch's own, with core's CUDA driver looking after its bodies."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from tensorplay_core import unwinding
from tensorplay_core.errors import CaptureError, CaptureInvalidated, TensorplayError
from tensorplay_core.protocols import Capture, CaptureMode, CaptureOptions
from tensorplay_core.runtime import Runtime
from tensorplay_torch.resources.bases import Bases, cuda_driver
from tensorplay_torch.resources.devices import current_index, index_of
from tensorplay_torch.resources.generators import Generators, checked
from tensorplay_torch.resources.memory import Segments
from tensorplay_torch.resources.pools import Begun, Native, TorchPool
from tensorplay_torch.resources.routing import release_bodies
from tensorplay_torch.resources.streams import Lane, SideStreams, current_handle
from tensorplay_torch.tracking.surroundings import Entered

from .broken import WAITING, broken, torch_failure
from .captured import Captured, CudaTemplate
from .foreign import ForeignWork
from .settling import forget_workspaces, settle
from .unwind import drop, end_quietly, hear_again
from .watch import Watch

__all__ = ["CudaCapture", "OpenCapture", "attempt", "begin"]

OWNER = "torch.cuda.CUDAGraph"
LEGACY = (0, 1, 2)
"""Handles of the default streams, which cannot be captured."""
log = logging.getLogger(__name__)


class OpenCapture:
    """A capture under way, as its bodies see it.

    Attributes:
        device: Where it runs.
        stream: Handle of its stream.
        parent: None; bodies have one.
        base: Core's CUDA driver.
        inner: The same capture, as that driver adopts it when somebody first asks for it.
        pool: What it allocates from.
        watch: What sees the captured work.
        depth: How many bodies deep: 0.
        begun: Where bodies allocated from, and how often each began to.
        open_bodies: What undoes each body that is entered, the innermost last.
    """

    parent: Capture | None = None
    depth = 0

    def __init__(
        self, base: Runtime, stream: int, pool: TorchPool, watch: Watch, streams: SideStreams
    ) -> None:
        self.base, self.stream, self.pool, self.watch = base, stream, pool, watch
        self.device: torch.device = pool.device
        self.adopted: Capture | None = None
        self.begun: Begun = defaultdict(int)
        self.open_bodies: list[ExitStack] = []
        self._streams = streams
        self._body_natives: dict[int, tuple[Native, Native]] = {}

    @property
    def inner(self) -> Capture:
        """See above: the driver beneath has work to do for a capture with bodies only."""
        if self.adopted is None:
            self.adopted = self.base.graph_adopt(self.stream, OWNER)
            self.watch.follow(self.adopted)
        return self.adopted

    @property
    def root(self) -> OpenCapture:
        """This capture: bodies answer with the one they are in."""
        return self

    def lane(self, depth: int) -> Lane:
        """The stream that bodies at ``depth`` run on."""
        return self._streams.lane(self.pool, depth)

    def body_natives(self, depth: int) -> tuple[Native, Native]:
        """Where bodies at ``depth`` allocate: torch cannot begin one id twice at a time."""
        if depth not in self._body_natives:
            self._body_natives[depth] = self.pool.draw(), self.pool.draw()
        return self._body_natives[depth]

    def end_bodies(self, error: BaseException | None) -> None:
        """Ends whatever bodies are open, the innermost first. Never raises."""
        while self.open_bodies:
            # It stays here until it is left: an interrupt may have this called again.
            attempt("leaving a body", self.open_bodies[-1].close, error)
            del self.open_bodies[-1]
        if (inner := self.adopted) is not None:
            attempt("ending bodies", lambda: self.base.graph_abort(inner, error), error)


class CudaCapture(OpenCapture):
    """A capture of torch's, from before it begins until its template has it or it is discarded.

    Whatever breaks off its beginning or its end, an interrupt at any moment too, ``abort`` undoes
    what was done by then.
    """

    def __init__(
        self,
        base: Runtime,
        stream: torch.cuda.Stream,
        pool: TorchPool,
        watch: Watch,
        streams: SideStreams,
        *,
        generators: Generators,
        before: int,
    ) -> None:
        super().__init__(base, stream.cuda_stream, pool, watch, streams)
        self._torch_stream, self._generators = stream, generators
        self._entered = Entered(stream, before)
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        # Torch may have it under way; has begun it; may have broken it; it is undone.
        self._open = self._began = self._broken = self._over = False

    def begin(self, mode: CaptureMode) -> None:
        """Waits for the device, begins the capture and makes its stream current in this thread.

        Raises:
            CaptureError: This thread has a capture under way, or torch cannot begin one.
        """
        graph, pool = self._graph, self.pool
        self._entered.enter()
        self._streams.honour(pool, self._torch_stream)
        settle(self.device)
        self._generators.register_with(graph)
        forget_workspaces()
        native: Any = pool.begin(graph)  # As the type that torch gives the ids that it hands out.
        self._open = True
        try:
            graph.capture_begin(native, mode)
        except RuntimeError as error:
            self._open, self._broken = False, True
            raise torch_failure(
                "cudaStreamBeginCapture", repr(self._torch_stream), error
            ) from error
        self._began = True
        self.watch.start(lambda: ForeignWork(cuda_driver(self.base).gaps(self.stream)))

    def end(self) -> CudaTemplate:
        """Ends it and restores what ``begin`` changed, also when it raises.

        Raises:
            UnjoinedWork: A forked stream was not joined.
            CaptureInvalidated: An illegal call broke it.
            OperationRefused: Optimizer state was born in it.
        """
        try:
            self.watch.stop()
            self.watch.read()
            try:
                self._end_torch()
            except RuntimeError as met:
                self._open = False
                raise self._what_broke(met) from met
            self.watch.claim(lambda: Segments(self.pool, self.begun))
            self.watch.accept()
            graph = self._graph
            inner = cuda_driver(self.base).template_of(
                self.adopted, graph.raw_cuda_graph(), graph, device=index_of(self.device)
            )
            captured = Captured(graph, self.pool, self.begun, self._generators, self.watch)
            unwinding.through(self._entered.leave)
            return CudaTemplate(captured, inner)
        except BaseException as error:
            self.abort(error)
            raise

    def abort(self, error: BaseException | None) -> None:
        """Ends and discards it, bodies first. Idempotent. Raises nothing but an interrupt."""
        unwinding.through(self._undo, error)

    def _undo(self, error: BaseException | None) -> None:
        if self._over:
            return
        attempt("stopping to watch", self.watch.stop, error)
        if self._open and (self._began or self._is_capturing()):
            self._began = True
            self.end_bodies(error)
            attempt("ending torch's capture", self._end_torch, error)
        hear_again()
        self._discard(error)
        # Another capture may be on the stream as soon as this has left.
        self._open = False
        self._entered.leave()
        self._over = True

    def _is_capturing(self) -> bool:
        try:
            return cuda_driver(self.base).is_capturing(self.stream)
        except TensorplayError:
            return True

    def _end_torch(self) -> None:
        # Whatever the user made current meanwhile, torch ends a capture on its own stream only.
        with self._entered.here():
            # Until it is known to be whole: an interrupt may come in the place of torch's error.
            self._broken = True
            try:
                end_quietly(self._graph)
                self._open = self._broken = False
            finally:
                forget_workspaces()

    def _discard(self, error: BaseException | None) -> None:
        inner, poisoned = self.adopted, False
        if inner is not None:
            poisoned = bool(getattr(inner, "poisoned", ""))
            attempt("burying", lambda: cuda_driver(self.base).bury(inner, error), error)
        if (self._broken and self._began) or poisoned:
            self._streams.spoil(self.pool)
        attempt("giving back memory", partial(self._drop, poisoned=poisoned), error)
        attempt("giving back bodies", lambda: release_bodies(self.pool, self.begun), error)
        attempt("restoring bindings", self.watch.undo, error)

    def _drop(self, *, poisoned: bool) -> None:
        if not self._began and not self._broken:
            self.pool.forgo(self._graph)
            return
        drop(
            self._graph,
            self.pool,
            self._torch_stream,
            self._generators,
            broken=self._broken,
            poisoned=poisoned,
        )

    def _what_broke(self, error: RuntimeError) -> CaptureError:
        subject, seen = f"the capture on {self.device}", self.watch.last_seen()
        return broken(error, subject, doing="ending", seen=seen) or CaptureInvalidated(
            doing="ending",
            subject=subject,
            met=f"it was broken before ({str(error).partition(chr(10))[0]}){seen}",
            remedy=WAITING,
        )


def begin(
    bases: Bases,
    streams: SideStreams,
    stream: torch.cuda.Stream,
    pool: TorchPool,
    mode: CaptureMode,
    options: CaptureOptions,
) -> CudaCapture:
    """Begins a capture on ``stream`` into ``pool`` and makes the stream current in this thread.

    It waits for the device first. If it raises, nothing has changed.

    Raises:
        CaptureError: The stream is a default one, or it or this thread's current one is capturing.
        ArgumentError: A generator to register is another device's.
    """
    base, handle = bases("cuda"), stream.cuda_stream
    if handle in LEGACY:
        raise _refused(stream, "it is a default stream, which cannot be captured")
    device = pool.device
    registered = checked(options.generators, device) if options.generators else ()
    if not torch.cuda.is_initialized():
        torch.cuda.init()
    # Before anything waits: that would break the other capture.
    is_capturing, now = cuda_driver(base).is_capturing, current_index()
    if is_capturing(current_handle(device)) or (
        now != device.index and torch.cuda.is_current_stream_capturing()
    ):
        raise _refused(stream, "this thread's current stream is capturing already")
    if is_capturing(handle):
        raise _refused(stream, "it is capturing already")
    generators = Generators(device, registered)
    pool.tied |= bool(registered)
    watch = Watch(device, options, generators)
    capture = CudaCapture(base, stream, pool, watch, streams, generators=generators, before=now)
    options.begun.append(capture)
    try:
        capture.begin(mode)
    except BaseException as error:
        capture.abort(error)
        raise
    return capture


def attempt(what: str, step: Callable[[], object], error: BaseException | None) -> bool:
    """Takes one step of an unwinding; what it raises becomes a note on ``error``."""
    try:
        step()
    except Exception as met:
        note = f"{what} met {type(met).__name__}: {str(met).partition(chr(10))[0]}"
        log.debug("unwinding a capture: %s", note, exc_info=met)
        if error is not None:
            error.add_note(note)
        return False
    return True


def _refused(stream: torch.cuda.Stream, met: str) -> CaptureError:
    return CaptureError(
        doing="beginning a capture",
        subject=f"on {stream}",
        met=met,
        remedy="Leave stream= out, or pass a stream made with torch.cuda.Stream() that is idle.",
    )
