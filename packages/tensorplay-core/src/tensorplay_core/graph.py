"""``CUDAGraph``: work recorded once, replayed by one launch."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn, SupportsIndex, cast

from . import reclaim, registry, unwinding
from .errors import ArgumentTypeError, GraphStateError
from .protocols import Device, Executable, StagePlan
from .runtime import Runtime, select
from .staging import ConvertingStage, sequence
from .updates import Parts, UpdateMethods, let_go

__all__ = ["CUDAGraph", "is_current_stream_capturing"]


class CUDAGraph(UpdateMethods):
    """GPU (or host) work, recorded once and replayed for the price of a launch.

    Most users capture with ``with graph(g): ...``; the methods below are what that does.

    Args:
        keep_graph: Do not instantiate at the end of the capture, but at the first ``replay`` or at
            ``instantiate``, which then may be called again to instantiate anew.
        device: Device to capture on; None is the current device when the capture begins.

    Raises:
        UnknownDriver: ``TENSORPLAY_DRIVER`` names no installed driver.
        DriverUnavailable: The driver cannot work here.
        ArgumentError: No such device.
    """

    driver: ClassVar[str | None] = None
    """The driver this class is bound to; None chooses as ``select`` does."""

    def __init__(self, *, keep_graph: bool = False, device: object = None) -> None:
        self._runtime: Runtime = select(self.driver)
        self._device: Device | None = (
            None if device is None else self._runtime.resolve_device(device)
        )
        self._keep_graph = keep_graph
        self._debug = False
        self._closed = False
        self._lock = threading.RLock()
        self._generators: tuple[object, ...] = ()
        self._references = self._revision = 0
        self._updater = None
        self._orphaned = ""
        self._bodies, self._retained = [], []
        self._serial = registry.register(self)

    def instantiate(self) -> None:
        """Makes the captured graph executable. No effect once done, but with ``keep_graph`` anew.

        Raises:
            GraphStateError: Nothing was captured.
            DriverCallFailed: The driver could not.
        """
        # What it is to run and what it runs now: an interrupt may keep either from its place.
        made: list[Executable | None] = []
        try:
            with self._lock:
                if self._template is None:
                    raise self._wrong_state("instantiating", "Capture it first: with graph(g): ...")
                if self._executable is not None and not self._keep_graph:
                    return
                executable = self._runtime.graph_instantiate(self._template)
                made += (executable, self._executable)
                self._run(executable)
        finally:
            unwinding.through(self._end_others, made)

    def _end_others(self, made: list[Executable | None]) -> None:
        """Ends those that it does not run. Idempotent."""
        for one in made:
            if one is not None and one is not self._executable:
                reclaim.dispose(one.close)

    def _run(self, executable: Executable) -> None:
        self._executable, self._staged = executable, None
        # The driver's closure itself, not a method around it: each frame costs 50 ns a replay.
        launch = self.__dict__["replay"] = executable.launch
        self._references = sys.getrefcount(launch)

    def replay(self, stream: object = None) -> None:
        """Launches the graph. It returns at once; the device runs it in the stream's order.

        Args:
            stream: A torch or CuPy stream, anything with ``__cuda_stream__``, or an int handle;
                None is the current stream.

        Raises:
            GraphStateError: Nothing was captured, or the graph was reset or closed.
            StaleGraph: Memory that it reads has died or moved (where the capture asked to check).
            ReplayError: It was called in the midst of its own launch, by a signal handler, say.
            LoopLimitExceeded: A loop of the host driver's graph ran longer than it may.
            ArgumentTypeError: ``stream`` is no stream.
            CaptureError: The stream is capturing: a launch of a graph cannot be captured.
            DriverCallFailed: The driver refused the launch.
        """
        self._ready("replaying").launch(stream)

    def _ready(self, doing: str) -> Executable:
        found = self._executable
        if found is not None:
            return found
        if self._template is None:
            raise self._wrong_state(doing, "Capture it first: with graph(g): ...")
        self.instantiate()
        return cast("Executable", self._executable)

    def stage_and_launch(
        self, static_inputs: Sequence[Any], inputs: Sequence[Any], *, stream: object = None
    ) -> None:
        """Copies every input onto its static buffer and replays, in one crossing.

        Contiguous inputs of the buffer's dtype and device take the driver's copy kernel; others
        (another dtype, other strides, the host, another device) take full copies ahead of it. An
        input that is its own static buffer is not copied. Sources may be changed or freed at once.

        Args:
            static_inputs: Buffers that the graph reads. That it does is not checked: it may ignore
                an input, and no driver of a GPU can tell.
            inputs: As many arrays, of the same shapes.
            stream: Where to copy and launch; None is the current stream.

        Raises:
            SignatureMismatch: The count or a shape differs; nothing was copied or launched.
            ArgumentTypeError: A buffer or an input is no array, or ``stream`` no stream.
            GraphStateError: Nothing was captured.
            StaleGraph, ReplayError, DriverCallFailed: As for ``replay``.
        """
        while True:
            executable = self._ready("staging into")
            seen, held = (executable, self._revision), self._staged
            try:
                if held is None or held[1] != seen or not held[0].serves(static_inputs):
                    made = ConvertingStage(
                        self._runtime,
                        executable,
                        static_inputs,
                        device=self._device,
                        subject=repr(self),
                    )
                    held = self._staged = made, seen
                held[0](inputs, stream)
                return
            except GraphStateError:
                # It takes the graph as it is: what was made before an update, a reset or a new
                # capture is good for nothing. What the work itself raised is no reason to repeat.
                if not self._has_changed(seen):
                    raise

    def _has_changed(self, seen: tuple[Executable, int]) -> bool:
        """True if what ``seen`` says of the graph is so no more, or will not be in a moment."""
        if self._template is None:
            return False  # There is nothing to launch, and it is not waited for.
        if self._updater not in (None, (threading.get_ident(),)):
            time.sleep(1e-4)
            return True
        return (self._executable, self._revision) != seen

    def stage(self, static_inputs: Sequence[Any], results: Sequence[Any] = ()) -> StagePlan:
        """Prepares staged launches for a hot loop: ``plan = g.stage(...)``, then ``plan(inputs)``.

        The plan is strict on count, shape, strides, dtype and device, and returns copies of
        ``results`` that later launches do not change. It raises GraphStateError, and writes
        nothing, once the graph was updated, reset or closed.

        Args:
            static_inputs: Buffers that the graph reads, as for ``stage_and_launch``.
            results: Buffers that the graph writes.

        Raises:
            ArgumentTypeError: A buffer is no array.
            GraphStateError: Nothing was captured.
            UnsupportedByDriver: The driver cannot stage.
        """
        static, wanted = sequence(static_inputs, "static_inputs"), sequence(results, "results")
        return self._runtime.stage(self._ready("staging into"), static, wanted)

    def upload(self, stream: object = None) -> None:
        """Moves the executable to the device, so that the first replay does not have to.

        Raises:
            GraphStateError: Nothing was captured.
        """
        self._ready("uploading").upload(stream)

    def retain(self, obj: object) -> None:
        """Keeps ``obj`` (a module, a kernel, a host buffer) alive as long as the graph can run.

        Raises:
            GraphStateError: The graph is empty or closed.
        """
        if self._template is None and self._capture is None:
            raise self._wrong_state("retaining for", "Capture it first: with graph(g): ...")
        self._retained.append(obj)
        if self._template is not None:
            self._template.retain(obj)

    def register_generator_state(self, generator: object) -> None:
        """Lets the graph follow a random generator beside the device's default one.

        Args:
            generator: Of the driver's framework, on the device that the graph captures on.

        Raises:
            ArgumentTypeError: It is no generator of the driver's; of some drivers at the capture.
            GraphStateError: The graph is captured already, or closed.
        """
        if self._state() != "empty":
            raise self._wrong_state("registering a generator with", "Register before the capture.")
        self._generators = (*self._generators, generator)

    def reset(self) -> None:
        """Destroys what was captured and lets go of the pool. It may capture again. Idempotent.

        Tensors born in the capture stay valid; their memory returns with the last of them.

        Raises:
            GraphStateError: A capture is under way in another thread.
        """
        with self._lock:
            if self._capture is not None:
                if not self._is_mine():
                    raise self._wrong_state("resetting", "End the capture in its thread first.")
                self._abort(None)
        unwinding.through(self._end_parts, [])

    def _end_parts(self, ended: list[Parts]) -> None:
        """Forgets what it holds, noted in ``ended`` before, and lets go of it. Idempotent."""
        with self._lock:
            if not ended:
                ended.append(self._parts())
            if self._holds(ended[0]):
                self._forget()
        let_go(ended[0])

    def close(self) -> None:
        """Ends the graph for good. Idempotent, in any order, from any thread.

        During another capture the destruction is put off until that ends.
        """
        if not self._closed:
            self.reset()
            self._closed = True

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # A copy would share the executable, and its end would be this one's.
        raise ArgumentTypeError(
            doing="copying or pickling",
            subject=repr(self),
            met="native work and the memory it runs in have no copy",
            remedy="Pass the graph itself; for a second one, capture the work again.",
        )

    def __del__(self) -> None:
        if self._shared_pool is None and self._capture is None:
            return  # It is empty, or never finished __init__: there is nothing to end.
        launch = self.__dict__.get("replay")
        if launch is not None and sys.getrefcount(launch) > self._references:
            # `make().replay()`, or a `g.replay` that was kept: its holder means to launch it yet.
            end = weakref.finalize(
                self._executable, let_go, self._parts()._replace(executable=None)
            )
            end.atexit = False
        else:
            self.close()


def is_current_stream_capturing(*, driver: str | None = None) -> bool:
    """True if this thread's current stream is capturing, whichever library began the capture.

    Args:
        driver: Name of the driver; None chooses as ``select`` does.

    Raises:
        UnknownDriver: No such driver.
        DriverUnavailable: It cannot work here.
    """
    runtime = select(driver)
    return runtime.graph_capturing(runtime.resolve_device(None))
