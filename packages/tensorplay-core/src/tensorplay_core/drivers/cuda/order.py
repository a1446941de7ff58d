"""Order among launches of different executables that work on the same buffers.

CUDA orders the launches of one executable whatever their streams, and all work of one stream. A
staged launch is another executable, or two kernels beside one, over the same static buffers: where
it follows a launch of another on another stream, it waits for an event.
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
    """What was launched last, and where. Its methods are called in the executable's turn.

    An event is recorded only when somebody has to wait for it: an upload of an executable comes
    after every launch of it before, on whatever stream that was (so the driver's documentation of
    cuGraphUpload), so it stands for the last launch even when the stream of that is gone.

    Args:
        work: The driver.
        device: The GPU.
        native: The executable whose launches so far come first.

    Attributes:
        last: The executable launched last, None if it was not one alone.
        where: The native stream that it was launched on.
    """

    def __init__(self, work: Work, device: CudaDevice, native: Any) -> None:
        calls = work.cu
        self._work, self._device = work, device
        self._wait, self._record = calls.raw("cuStreamWaitEvent"), calls.raw("cuEventRecord")
        self.capturing = work.hot.capturing
        self._own = Event(work, device)
        self._event: Event | None = None
        self.last: Any = native
        self.where: Any = None
        self._keep: object = None

    def before(self, target: Any, native: Any = None) -> Any:
        """What comes next on ``target`` comes after the last launch. Returns the native result.

        Args:
            target: A native stream.
            native: The executable that comes next, if nothing but it does.
        """
        if target == self.where or (native is not None and native is self.last):
            return 0
        event = self._event or self._recorded()
        return self._wait(target, event.native, 0)[0]

    def after(
        self, target: Any, native: Any = None, event: Event | None = None, *, keep: object = None
    ) -> Any:
        """A launch was made on ``target``, of ``native`` alone or of several things.

        ``event`` is recorded, to stand for it; without ``native`` an event of its own is.
        ``keep`` keeps ``native`` from being destroyed until the next launch.
        """
        self.last, self.where, self._keep = native, target, keep
        if event is None:
            if native is not None:
                self._event = None
                return 0
            event = self._own
        self._event = event
        return self._record(event.native, target)[0]

    def unseen(self) -> None:
        """Its executable may have been launched where nobody told this."""
        self.where = self._event = None

    def settle(self, native: Any) -> None:
        """``native`` is about to be destroyed: what comes next need not ask for it."""
        if native is self.last:
            if self._event is None:
                self._event = self._recorded()
            self.last = self._keep = None

    def _recorded(self) -> Event:
        work, service = self._work, self._work.service(self._device)
        about = f"executable {int(self.last):#x}"
        with work.inside(self._device):
            work.cu.cuGraphUpload(self.last, service, about=about)
            work.cu.cuEventRecord(self._own.native, service, about=about)
        return self._own

    def around(self, call: Callable[[Any, Any], Any], own: Any) -> Callable[[Any, Any], Any]:
        """``call`` in order. A captured launch has its place in the graph that it goes into."""

        def launch(native: Any, target: Any) -> Any:
            if self.capturing(target):
                return call(native, target)
            code = self.before(target, own)
            if code:
                return (code,)
            result = call(native, target)
            if not result or not result[0]:
                self.after(target, own)
            return result

        return launch
