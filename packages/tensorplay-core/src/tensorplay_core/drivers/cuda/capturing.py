"""Captures: begun here or adopted, ended or aborted. The hooks of a graph stand on it."""

from __future__ import annotations

from functools import partial
from typing import Any

from tensorplay_core.drivers.refusals import refuse_generators
from tensorplay_core.errors import CaptureError, ConditionalError
from tensorplay_core.protocols import CaptureMode, CaptureOptions

from . import unwinding
from .captures import CudaCapture, CudaTemplate, Owned
from .contexts import CudaDevice
from .failures import failure
from .pool import CudaPool, Pools
from .streams import LEGACY

__all__ = ["Captures"]

_MODES = {
    "global": "CU_STREAM_CAPTURE_MODE_GLOBAL",
    "thread_local": "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL",
    "relaxed": "CU_STREAM_CAPTURE_MODE_RELAXED",
}


class Captures(Pools):
    """Devices and pools, with captures."""

    def __init__(self, driver: Any = None) -> None:
        super().__init__(driver)
        # What graphs of other libraries need, by capture: nobody tells when such a graph dies, so
        # it stays until `graph_end` hands it to a template.
        self._unclaimed: dict[int, Owned] = {}

    def _begin(
        self,
        device: CudaDevice,
        stream: object,
        pool: CudaPool,
        mode: CaptureMode,
        options: CaptureOptions,
    ) -> CudaCapture:
        """Begins a capture, after waiting for the device, and makes its stream current."""
        refuse_generators("cuda", options)
        handle = self.handle(stream, device)
        about = f"a capture on stream {handle:#x} of {device}"
        self._refuse_stream(handle, about)
        # Loading code inside the capture may fail it; a conditional will want this.
        self.shipped(device, "predicates")
        native_mode = getattr(self.native.CUstreamCaptureMode, _MODES[mode])
        with self.capture_lock:
            self._wait_before(device, handle)
            with self.activated(device):
                self.cu.cuStreamBeginCapture(handle, native_mode, about=about)
            try:
                info = self.cu.capture_info(handle, about=about)
            except BaseException:
                self.cu.raw("cuStreamEndCapture")(handle)
                raise
            capture = CudaCapture(
                device=device,
                stream=handle,
                graph=info.graph,
                id=info.id,
                pools=[pool],
                track=options.track_operands,
                watch=options.check_input_liveness,
            )
            self.captures[info.id] = capture
            options.begun.append(capture)
            capture.owned.keep(pool)
        pool.arena.unite(capture.key)
        capture.restore = self.make_current(device, handle)
        return capture

    def _refuse_stream(self, handle: int, about: str) -> None:
        if handle in LEGACY:
            raise CaptureError(
                doing="beginning",
                subject=about,
                met="it is the legacy default stream, which cannot capture",
                remedy="Capture on a side stream: stream=None takes one.",
            )
        if self.is_capturing(handle):
            raise CaptureError(
                doing="beginning",
                subject=about,
                met="the stream is capturing already",
                remedy="End that capture first, or capture on another stream.",
            )

    def _wait_before(self, device: CudaDevice, handle: int) -> None:
        """Waits for what was issued before: for the device, or beside captures for two streams."""
        with self.inside(device):
            if not self.captures:
                self.cu.cuCtxSynchronize(about=str(device))
                return
            for stream in {handle, self.handle(None, device)}:
                if not self.is_capturing(stream):
                    self.cu.cuStreamSynchronize(stream, about=f"stream {stream:#x}")

    def _adopt(self, stream: object, owner: str) -> CudaCapture:
        """Takes in a capture that another library began. The current stream stays as it is."""
        device = self.current_device()
        handle = self.handle(stream, device)
        about = f"the capture of {owner} on stream {handle:#x}"
        info = None if handle in LEGACY else self.cu.capture_info(handle, about=about)
        if info is None or info.status != unwinding.ACTIVE:
            raise CaptureError(
                doing="adopting",
                subject=about,
                met="the stream is not capturing"
                if info is None or not info.status
                else "an illegal call broke the capture",
                remedy="Begin the capture first, and pass the stream that it runs on.",
            )
        known = self.captures.get(info.id)
        if known is not None:
            return known
        if (device, "predicates") not in self._shipped:
            with self.relaxed():
                self.shipped(device, "predicates")
        capture = CudaCapture(
            device=device,
            stream=handle,
            graph=info.graph,
            id=info.id,
            owner=owner,
            owned=self._unclaimed.setdefault(info.id, Owned()),
            make_pool=partial(self.tensorplay_pool_create, device),
        )
        self.captures[info.id] = capture
        return capture

    def _end(self, capture: CudaCapture) -> CudaTemplate:
        """Ends the capture; of an adopted one, which its owner has ended, makes the template."""
        if capture.owner:
            return self.template_of(capture, capture.graph, capture.owner)
        if capture.open or capture.poisoned:
            error = ConditionalError(
                doing="ending",
                subject=repr(capture),
                met=capture.poisoned or f"{capture.open[-1]!r} is open",
                remedy="Close each body before the capture ends; the capture was discarded.",
            )
            self._abort(capture, error)
            raise error
        try:
            code, graph = self.cu.raw("cuStreamEndCapture")(capture.stream)
            if code:
                # The graph went with the capture: there is nothing left to destroy.
                raise failure(self.native, "cuStreamEndCapture", int(code), about=repr(capture))
            return CudaTemplate(self, capture.device, graph, capture=capture)
        finally:
            self._leave(capture)

    def template_of(
        self, capture: CudaCapture | None, graph: Any, owner: object, device: int = 0
    ) -> CudaTemplate:
        """The template of an adopted capture, once its owner ended it.

        Args:
            capture: What ``graph_adopt`` returned; None if nobody needed to adopt it.
            graph: The owner's native graph, a handle or an int.
            owner: Who destroys it; it is kept alive until the template is closed.
            device: Ordinal of its GPU, of a capture that was not adopted.
        """
        native = self.native.CUgraph(int(graph))
        if capture is None:
            return CudaTemplate(self, CudaDevice(device), native, owner)
        try:
            return CudaTemplate(self, capture.device, native, owner, capture)
        finally:
            self._leave(capture)

    def _leave(self, capture: CudaCapture) -> None:
        self._unclaimed.pop(capture.id, None)
        if capture.restore is not None:
            capture.restore()
            capture.restore = None
        capture.finish()
        self.captures.pop(capture.id, None)

    def _abort(self, capture: CudaCapture, error: BaseException | None) -> None:
        """Ends and discards a capture that failed. Of an adopted one it ends the bodies only.

        The owner of an adopted capture then ends that. If it is ``poisoned``, the owner must never
        destroy the graph it gets. At last it calls ``bury``. Idempotent.
        """
        if self.captures.get(capture.id) is not capture:
            return  # It is over, and its stream may be in another by now.

        def note(sentence: str) -> None:
            if error is not None:
                error.add_note(sentence)

        for body in reversed(capture.open):
            self.captures.pop(body.id, None)
            if body.restore is not None:
                body.restore()
        try:
            unwinding.unwind(self, capture, note)
        except Exception as met:
            # Never raises: the user's own exception is under way.
            note(f"unwinding {capture!r} met {type(met).__name__}: {met}")
        if not capture.owner:
            self._leave(capture)

    def bury(self, capture: CudaCapture, error: BaseException | None = None) -> None:
        """After ``graph_abort`` of an adopted capture and its owner's end of it: the last step."""
        unwinding.bury(self, capture, error.add_note if error is not None else lambda _: None)
        self._leave(capture)
