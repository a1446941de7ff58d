"""The neutral work through which one suite tests every driver.

No hook computes, so a suite that is to compare replay with eager needs work to record. Each driver
ships a workbench (entry point group ``tensorplay_core.workbenches``, same name as the driver). Its
operations run at once outside a capture and are recorded inside one, on this thread's current
stream. Buffers are the driver's own arrays, so that the façade's predicates, staging and copies
take them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tensorplay_core.protocols import Device
from tensorplay_core.runtime import Runtime

__all__ = ["Workbench", "WorkbenchFactory"]


class Workbench(Protocol):
    """Buffers of one dimension and the least work that tells right from wrong.

    ``buffer`` makes float32, ``flag`` one Bool, ``index`` one int32. Arithmetic is float32, so
    results are compared bit for bit. Reading is not recorded work: it waits, and inside a capture
    the driver refuses it with OperationRefused (or another CaptureError).
    """

    runtime: Runtime
    device: Device

    def buffer(self, values: Sequence[float]) -> Any:
        """A float32 buffer outside any pool, living as long as it is referred to."""
        ...

    def flag(self, value: bool) -> Any:
        """One Bool, a predicate."""
        ...

    def index(self, value: int) -> Any:
        """One int32, the index of a switch."""
        ...

    def read(self, buffer: Any) -> list[float]:
        """Waits for the device and returns the values; also of a flag or an index."""
        ...

    def write(self, buffer: Any, values: Sequence[float]) -> None:
        """Waits for the device, then sets the values from the host: fresh input, never recorded.

        Also of a flag (0.0 or 1.0) or an index. Inside a capture the driver refuses it.
        """
        ...

    def copy_(self, destination: Any, source: Any) -> None:
        """``destination[:] = source``, same length."""
        ...

    def add_(self, destination: Any, source: Any) -> None:
        """``destination += source``; ``source`` is a buffer of the same length or a float.

        A float is a host scalar and so a constant of the capture.
        """
        ...

    def double(self, source: Any) -> Any:
        """``source * 2`` in a fresh buffer, allocated from the capture's pool inside a capture."""
        ...

    def less_(self, out: Any, first: Any, second: Any) -> None:
        """``out[0] = first[0] < second[0]`` into a flag; ``second`` may be a float constant."""
        ...

    def stream(self) -> Any:
        """A new non-blocking stream, with ``__cuda_stream__``."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[None]:
        """Makes ``stream`` current in this thread while entered."""
        ...

    def fork(self) -> Any:
        """A new stream whose work comes after all work so far on the current one."""
        ...

    def join(self, stream: Any) -> None:
        """Work on the current stream from here on comes after all work so far on ``stream``."""
        ...

    def fail(self) -> None:
        """Does what a capture must refuse (a synchronisation): raises in a capture, else nothing.

        On drivers where the native call invalidates the capture, it does so.
        """
        ...

    def synchronize(self) -> None:
        """Waits for all work on the device. Illegal in a capture."""
        ...

    def live_bytes(self) -> int:
        """Device bytes held by buffers of this driver, pools included, after a collection."""
        ...

    def surroundings(self) -> tuple[object, ...]:
        """What a capture must leave as it was: current stream, current device, RNG state."""
        ...


class WorkbenchFactory(Protocol):
    """What an entry point of ``tensorplay_core.workbenches`` refers to."""

    def __call__(self, runtime: Runtime, device: Device) -> Workbench:
        """A workbench on ``device``."""
        ...
