"""Order among launches of different executables that work on the same buffers.

CUDA orders the launches of one executable whatever their streams. A staged launch is another
executable, or two kernels beside one, over the same static buffers: it is ordered by an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .streams import Event

if TYPE_CHECKING:
    from .contexts import CudaDevice
    from .work import Work

__all__ = ["Order"]


class Order:
    """The last launch, as an event. Its methods are called in the executable's turn.

    Args:
        work: The driver.
        device: The GPU.
        native: The executable whose launches so far come first.
    """

    def __init__(self, work: Work, device: CudaDevice, native: Any) -> None:
        calls = work.cu
        self._work = work
        self._wait, self._record = calls.raw("cuStreamWaitEvent"), calls.raw("cuEventRecord")
        self._capturing = calls.raw("cuStreamIsCapturing")
        self._own = self._event = Event(work, device)
        self._where: Any = None
        service = work.service(device)
        with work.activated(device):
            # An upload comes after every launch before it, on whatever stream that was.
            calls.cuGraphUpload(native, service, about=f"executable {int(native):#x}")
            calls.cuEventRecord(self._event.native, service, about=f"executable {int(native):#x}")

    def capturing(self, target: Any) -> bool:
        """True if a launch on ``target`` would be captured, not run."""
        status = self._capturing(target)
        return bool(status[0] or status[1])

    def before(self, target: Any) -> Any:
        """What comes next on ``target`` comes after the last launch. Returns the native result."""
        return self._wait(target, self._event.native, 0)[0] if target is not self._where else 0

    def after(self, target: Any, event: Event | None = None) -> Any:
        """A launch was made on ``target``; ``event``, or its own, stands for it from now on."""
        chosen = event or self._own
        code = self._record(chosen.native, target)[0]
        self._event, self._where = chosen, target
        return code

    def around(self, call: Callable[[Any, Any], tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        """``call`` in order. A captured launch has its place in the graph that it goes into."""

        def launch(native: Any, target: Any) -> tuple[Any, ...]:
            if self.capturing(target):
                return call(native, target)
            result: tuple[Any, ...] = (self.before(target),)
            if not result[0]:
                result = call(native, target)
            if not result[0]:
                result = (self.after(target),)
            return result

        return launch
