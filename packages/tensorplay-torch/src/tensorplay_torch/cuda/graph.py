"""The executable of a capture on CUDA, which launches it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch

from tensorplay_core import reclaim, unwinding
from tensorplay_core.errors import DriverCallFailed, GraphStateError
from tensorplay_core.protocols import Update
from tensorplay_torch._private import PRIVATE
from tensorplay_torch.resources.bases import Bases, NativeExecutable, cuda_driver
from tensorplay_torch.resources.devices import index_of, wait_for
from tensorplay_torch.resources.streams import as_torch_stream, current_handle
from tensorplay_torch.resources.turns import CLOSED

from .broken import torch_failure
from .captured import Captured, CudaTemplate
from .copying import Copying

__all__ = ["CudaExecutable"]


class CudaExecutable:
    """torch's executable, launched without torch wherever that gives the same result.

    The first launch goes through torch's ``replay``. If it moved no generator, the graph draws no
    random numbers, and later launches need nothing but ``cuGraphLaunch``.

    Attributes:
        launch: Enqueues the graph on the current stream, or on the one given.
        device: Where it runs.
        inner: The same executable, as core's CUDA driver launches it.
        revision: Counts the updates in place; -1 once it is closed.
    """

    launch: Callable[..., None]

    def __init__(self, bases: Bases, template: CudaTemplate) -> None:
        captured = template.captured
        self._bases = bases
        self._base = bases("cuda")
        self._template, self._count = template, template.node_count
        self._captured = captured
        self._updated: Captured | None = None
        self._replaced: list[Captured] = []
        self._holder = object()
        self.device = captured.pool.device
        self._current = _current_stream(self.device)
        self._copying = Copying(self._current)
        self.revision = 0
        self._closed = self._shown = False
        first = template.executable() if template.executable is not None else None
        made = self._beside(first) if first is not None and not first._closed else None
        self._draws: bool | None = None if made is None else False
        self.inner = self._by_torch(first) if made is None else made
        try:
            captured.hold(self._holder)
            self.launch = self._checked(self.inner.launch)
        except BaseException:  # An interrupt.
            captured.release(self._holder)
            raise

    def _by_torch(self, before: CudaExecutable | None) -> NativeExecutable:
        """The executable that torch has of a graph: whoever had it can launch no more."""
        if before is not None:
            before.close()
        graph = self._captured.graph
        try:
            graph.instantiate()
        except RuntimeError as error:
            raise torch_failure("cudaGraphInstantiate", repr(graph), error) from error
        inner = cuda_driver(self._base).make_executable(
            self._template.inner, graph.raw_cuda_graph_exec(), graph, self._current
        )
        inner.divert(self._through_torch)
        self._template.executable = weakref.ref(self)
        return inner

    def _beside(self, first: CudaExecutable) -> NativeExecutable | None:
        """A further executable beside torch's, if torch need not be there and CUDA allows it."""
        known = first.draws if first.draws is not None else self._captured.watch.drew
        if known is not False:
            return None
        try:
            return cuda_driver(self._base).make_executable(
                self._template.inner, current=self._current
            )
        except DriverCallFailed:  # Of a graph with conditional nodes there is one at a time.
            return None

    def __repr__(self) -> str:
        nodes = f"{self._count} node{'' if self._count == 1 else 's'}"
        return f"a graph of {nodes} on {self.device}"

    @property
    def draws(self) -> bool | None:
        """Whether it draws random numbers; None before its first launch."""
        return self._draws

    def _through_torch(self, _: object, target: Any) -> tuple[int]:
        """Launches through torch; for the last time if it turns out that torch need not be there.

        It runs in the inner executable's turn, which is what keeps two threads apart.
        """
        with self._on(int(target)):
            if self._closed:
                raise self._refused("it is closed", "Capture again, or keep the graph open.")
            if torch.cuda.is_current_stream_capturing():
                raise self._refused(
                    "the stream is capturing, and torch can advance the random generators of a "
                    "graph at its own replays only",
                    "Replay it once outside the capture; if it draws no random numbers it can "
                    "then be replayed inside one. Else capture its work itself.",
                )
            generators = self._captured.generators
            before = generators.offsets() if self._draws is None else ()
            self._shown = True  # An interrupt may come between the launch and what it tells.
            try:
                self._captured.graph.replay()
            except RuntimeError as error:
                raise torch_failure("cudaGraphLaunch", repr(self), error) from error
            self._copying.launched(int(target))
            if self._draws is None:
                self._draws = not generators.complete or generators.offsets() != before
        if not self._draws:
            self.inner.divert(None)
        return (0,)

    def _on(self, handle: int) -> AbstractContextManager[Any]:
        """Makes the stream torch's current one, if it is not."""
        if torch.cuda.current_device() == index_of(self.device) and handle == self._current():
            return nullcontext()
        return self._on_stream(handle)

    def _on_stream(self, stream: object) -> AbstractContextManager[Any]:
        return torch.cuda.stream(as_torch_stream(self._bases, stream, self.device))

    def _checked(self, launch: Callable[..., None]) -> Callable[..., None]:
        if not self._captured.watch.checks_liveness:
            return launch

        def launch_alive(stream: object = None) -> None:
            (self._updated or self._captured).watch.check_alive(repr(self))
            launch(stream)

        return launch_alive

    def upload(self, stream: object = None) -> None:
        """Moves the executable to the device."""
        self._shown = True
        self.inner.upload(stream)

    def raw(self) -> int:
        """The ``cudaGraphExec_t``, which stays this object's."""
        self._shown = True
        return int(self.inner.raw())

    @contextmanager
    def taken(self, stream: object, doing: str) -> Iterator[Callable[[], None]]:
        """This thread's turn to copy in, to call what this yields (the launch), and to copy out."""
        on = nullcontext() if stream is None else self._on_stream(stream)
        follow = partial(self.inner.follow, None, doing)
        with on, self._copying.around(self, doing, follow):
            if self._draws is False:  # Launches go past torch, and past what it could note.
                follow()
            yield self.launch

    def update(self, template: CudaTemplate) -> Update:
        """Makes it run the work of ``template``, if torch need not be there when it runs.

        Raises:
            ReplayError: This thread is in the midst of copying in, launching and copying out.
        """
        with self._copying.turn.taken(self, "updating"):
            return self._update(template)

    def _update(self, template: CudaTemplate) -> Update:
        if self._draws is not False:
            known = "draws random numbers" if self._draws else "was never replayed, so it may draw"
            return Update(
                in_place=False,
                reason=f"the graph {known}, and torch ties those to the capture they were made in",
            )
        seen = template.captured.watch.drew
        if seen or (seen is None and not template.does_as(self._template, self._base)):
            return Update(
                in_place=False,
                reason="the new capture may draw random numbers, which torch ties to that capture",
            )
        update = self._base.graph_update(self.inner, template.inner)
        if update.in_place:
            unwinding.through(self._adopt, template)
        return update

    def _adopt(self, template: CudaTemplate) -> None:
        """It runs the work of ``template`` now. Idempotent."""
        before, now = self._updated, template.captured
        if before is not None and before is not now:
            self._replaced.append(before)
        self._updated, self._template = now, template
        now.hold(self._holder)
        self.revision += 1
        if self._replaced:
            reclaim.dispose(partial(self._let_go, now))

    def _let_go(self, now: Captured) -> None:
        # The last launches of what was replaced may still be under way.
        if self.inner.unsettled or not all(one.is_safe_with(now) for one in self._replaced):
            self.inner.settle(partial(wait_for, self.device))
        for one in list(self._replaced):
            one.release(self._holder)
            with suppress(ValueError):  # Another thread did the same.
                self._replaced.remove(one)

    def close(self) -> None:
        """Waits for launches under way, then lets go. Idempotent."""
        self._closed, self.revision = True, CLOSED
        # It waits for all launches: what the graph reads is reused as soon as it is let go.
        self.inner.close(idle=self._draws is None and not self._shown)
        for captured in (*self._replaced, self._updated, self._captured):
            if captured is not None:
                captured.release(self._holder)

    def _refused(self, met: str, remedy: str) -> GraphStateError:
        return GraphStateError(doing="replaying", subject=repr(self), met=met, remedy=remedy)


def _current_stream(device: torch.device) -> Callable[[], int]:
    """What tells torch's current stream, for launches: as little as there is."""
    fast = PRIVATE["current_raw_stream"].value
    if fast is not None:
        return partial(fast, index_of(device))
    return partial(current_handle, device)
