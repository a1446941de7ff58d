"""Core's CUDA driver, on which the CuPy driver stands, loaded when a GPU is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from tensorplay_core import discovery
from tensorplay_core.errors import DriverUnavailable
from tensorplay_core.protocols import Capture, Executable, StagePlan, Template
from tensorplay_core.runtime import Runtime

__all__ = ["Base", "CudaDriver"]


class CudaDriver(Protocol):
    """What the CUDA driver's plugin offers frameworks beside the hooks."""

    def empty(self, shape: Sequence[int] | int, typestr: str, device: object) -> Any:
        """An array on the current stream; inside a capture from the capture's pool."""
        ...

    def retain(self, handle: int, operands: Iterable[Any], always: Iterable[object] = ()) -> None:
        """A graph whose capture includes the stream keeps these as long as it can run."""
        ...

    def mentioned(self, capture: Capture) -> set[int]:
        """Every 64-bit value in the parameters of the work captured so far."""
        ...

    def relaxed(self) -> AbstractContextManager[None]:
        """Calls of this thread that a capture would refuse are legal while entered."""
        ...

    def make_executable(
        self, template: Template, *, current: Callable[[], int] | None = None
    ) -> Executable:
        """An executable that launches, unless told where, on the stream ``current`` returns."""
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
        hold: bool = True,
    ) -> StagePlan:
        """Staged launches with a framework's own checks and allocator."""
        ...


class Base:
    """A child runtime of the CUDA driver. It has no observers, so that nothing counts twice."""

    def __init__(self) -> None:
        self._runtime: Runtime | None = None
        self._lock = threading.Lock()

    @property
    def runtime(self) -> Runtime:
        """Its hooks.

        Raises:
            DriverUnavailable: It cannot work on this machine.
        """
        if self._runtime is None:
            with self._lock:
                if self._runtime is None:
                    try:
                        plugin = discovery.choose("cuda").load()
                    except DriverUnavailable as error:
                        error.add_note("the CuPy driver stands on driver 'cuda'")
                        raise
                    self._runtime = Runtime(plugin, name="cuda")
        return self._runtime

    @property
    def driver(self) -> CudaDriver:
        """Its plugin.

        Raises:
            DriverUnavailable: It cannot work on this machine.
        """
        return cast("CudaDriver", self.runtime.driver)
