"""The drivers that the torch driver stands on: core's ``cuda`` and ``host``, loaded when needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

from tensorplay_core import discovery
from tensorplay_core.errors import DriverUnavailable
from tensorplay_core.protocols import Capture, Executable, Pool, StagePlan, Template, WorkQueue
from tensorplay_core.runtime import Runtime

if TYPE_CHECKING:
    from .streams import Lane

__all__ = [
    "Bases",
    "CudaDriver",
    "Gaps",
    "HostDriver",
    "HostExecutable",
    "HostProgram",
    "NativeExecutable",
    "NativeTemplate",
    "cuda_driver",
    "host_executable",
    "host_driver",
    "lend",
]

HINTS = {
    "cuda": "pip install 'tensorplay-torch[cuda13]' (or [cuda12], as torch.version.cuda says) "
    "brings what it needs.",
}


class CudaDriver(Protocol):
    """What core's CUDA driver offers a layer that captures and instantiates by itself."""

    def template_of(
        self, capture: Capture | None, graph: int, owner: object, device: int
    ) -> NativeTemplate:
        """The template of a capture, adopted or not, once its owner ended it."""
        ...

    def make_executable(
        self,
        template: Template,
        raw: int | None = None,
        owner: object = None,
        current: Callable[[], int] | None = None,
    ) -> NativeExecutable:
        """One of its own, or ``raw`` of an owner; ``current`` tells the current stream."""
        ...

    def is_capturing(self, handle: int) -> bool:
        """True if a stream is capturing, whoever began it."""
        ...

    def bury(self, capture: Capture, error: BaseException | None = None) -> None:
        """The last step of discarding an adopted capture."""
        ...

    def gaps(self, stream: int) -> Gaps:
        """Looks for foreign nodes of the capture on a stream."""
        ...

    def staged(
        self,
        executable: Executable,
        static: Sequence[Any],
        results: Sequence[Any],
        *,
        check: Callable[[Sequence[Any]], bool],
        pointer: Callable[[Any], int],
        allocate: Callable[[Any], Any],
        using: Callable[[Any], AbstractContextManager[Any]],
        hold: bool,
        guard: Callable[..., bool] | None = None,
        plain: Callable[[Sequence[Any]], bool] | None = None,
        fresh: Callable[[], tuple[Any, ...]] | None = None,
        compiled: Callable[[Any, tuple[int, ...], StagePlan], StagePlan] | None = None,
    ) -> StagePlan:
        """Staged launches with a framework's own checks and allocator."""
        ...


class Gaps(Protocol):
    """Nodes of a capture that no operation was seen to make."""

    def follow(self, capture: Capture) -> None:
        """Looks into bodies of the same capture, now that it is adopted."""
        ...

    def look(self) -> None:
        """Finds the nodes that came since the last look or passing."""
        ...

    def pass_over(self) -> None:
        """All nodes so far are accounted for."""
        ...

    def words(self) -> set[int]:
        """Every 64-bit value in their parameters; most are no addresses."""
        ...

    def __bool__(self) -> bool:
        """True if any was found."""
        ...


class NativeTemplate(Template, Protocol):
    """A template of core's CUDA driver."""

    def functions(self) -> tuple[int, ...] | None:
        """What its nodes run; None if it holds other graphs. It is read once, before it closes."""
        ...


class NativeExecutable(Executable, Protocol):
    """An executable of core's CUDA driver."""

    def close(self, *, idle: bool = False) -> None:
        """Ends it; ``idle`` says that it was never launched."""
        ...

    def follow(self, stream: object, doing: str) -> None:
        """What is enqueued on the stream from here on comes after all launches so far."""
        ...

    @property
    def unsettled(self) -> bool:
        """True if it keeps what only earlier launches used."""
        ...

    def settle(self, wait: Callable[[], object]) -> None:
        """Its owner waits for all launches so far: lets go of what only earlier ones used."""
        ...

    def divert(self, call: Callable[[Any, Any], tuple[Any, ...]] | None) -> None:
        """Lets launches go through ``call(native, target) -> (code,)``; None ends that."""
        ...


class HostDriver(WorkQueue, Protocol):
    """What core's host driver offers a layer that has memory of its own in its pools."""

    @property
    def running(self) -> bool:
        """True inside work that runs, which is not recorded."""
        ...

    def apart(self, pool: Pool) -> AbstractContextManager[None]:
        """Nobody runs in the pool's memory while entered."""
        ...


class HostProgram(Protocol):
    """What an executable of core's host driver runs. An update puts another in its place."""

    @property
    def recording(self) -> object | None:
        """What it was made from; None once the executable is closed."""
        ...

    def run(self) -> None:
        """Runs it, for who has its turn."""
        ...


class HostExecutable(Executable, Protocol):
    """An executable of core's host driver."""

    @property
    def program(self) -> HostProgram:
        """What a launch runs now."""
        ...

    @property
    def is_within(self) -> bool:
        """True in the midst of this thread's launch of it, or of one that shares memory with it."""
        ...

    def run_child_by(self, around: Callable[[Callable[[], object]], Callable[[], object]]) -> None:
        """As a child graph of another it runs ``around(work)`` in place of its work."""
        ...

    def turn_for(self, program: HostProgram, doing: str) -> AbstractContextManager[None]:
        """This thread's turn to run ``program``, with what it does before and after that."""
        ...

    def refuse_capturing(self, stream: object | None, operation: str) -> None:
        """Raises OperationRefused if work on ``stream`` would be recorded, or has to wait."""
        ...


class Bases:
    """Child runtimes by name. They have no observers, so that nothing is counted twice."""

    def __init__(self) -> None:
        self._runtimes: dict[str, Runtime] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str) -> Runtime:
        """The runtime of the driver ``name``, made at the first call.

        Raises:
            DriverUnavailable: It cannot work on this machine.
        """
        runtime = self._runtimes.get(name)
        if runtime is not None:
            return runtime
        with self._lock:
            if name not in self._runtimes:
                try:
                    plugin = discovery.choose(name).load()
                except DriverUnavailable as error:
                    error.add_note(f"the torch driver stands on driver {name!r} here")
                    if name in HINTS:
                        error.add_note(HINTS[name])
                    raise
                self._runtimes[name] = Runtime(plugin, name=name)
            return self._runtimes[name]


def cuda_driver(base: Runtime) -> CudaDriver:
    """Core's CUDA driver, beyond its hooks."""
    return base.driver  # type: ignore[return-value]  # A cast() would be a call of each capture.


def lend(body: Capture, lane: Lane) -> None:
    """Has core's CUDA driver capture ``body`` on ``lane``, which stays its lender's."""
    native: Any = body
    native.lane, native.lent = lane.native, True


def host_executable(base: Runtime, template: Template) -> HostExecutable:
    """An executable of core's host driver, beyond the protocol."""
    return cast("HostExecutable", base.graph_instantiate(template))


def host_driver(base: Runtime) -> HostDriver:
    """Core's host driver, beyond its hooks: it records work."""
    return cast("HostDriver", base.driver)
