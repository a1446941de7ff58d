"""The neutral work through which the conformance suite tests the CUDA driver."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from tensorplay_core import reclaim
from tensorplay_core.errors import ArgumentError, OperationRefused

from .arrays import DeviceArray
from .captures import Body

if TYPE_CHECKING:
    from tensorplay_core.runtime import Runtime

    from .conditional import Conditionals
    from .contexts import CudaDevice
    from .streams import Stream

__all__ = ["CudaWorkbench", "work_ptx"]

_THREADS = 128

_INDEX = """
    .reg .pred %p;
    .reg .b32 %x, %y, %i, %n;
    .reg .b64 %a, %b, %o;
    .reg .f32 %u, %v;
    mov.u32 %x, %ctaid.x;
    mov.u32 %y, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %x, %y, %i;
    ld.param.u32 %n, [n];
    setp.ge.u32 %p, %i, %n;
    @%p bra DONE;
    mul.wide.u32 %o, %i, 4;
    ld.param.u64 %a, [a];
    cvta.to.global.u64 %a, %a;
    add.u64 %a, %a, %o;
    ld.global.f32 %u, [%a];
"""

_SECOND = """\
    ld.param.u64 %b, [b];
    cvta.to.global.u64 %b, %b;
    add.u64 %b, %b, %o;
"""

_KERNELS = {
    "add_array(.param .u64 a, .param .u64 b, .param .u32 n)": f"""{_INDEX}{_SECOND}\
    ld.global.f32 %v, [%b];
    add.rn.f32 %u, %u, %v;
    st.global.f32 [%a], %u;
""",
    "add_number(.param .u64 a, .param .f32 b, .param .u32 n)": f"""{_INDEX}\
    ld.param.f32 %v, [b];
    add.rn.f32 %u, %u, %v;
    st.global.f32 [%a], %u;
""",
    "double(.param .u64 b, .param .u64 a, .param .u32 n)": f"""{_INDEX}{_SECOND}\
    add.rn.f32 %u, %u, %u;
    st.global.f32 [%b], %u;
""",
    "less_array(.param .u64 out, .param .u64 a, .param .u64 b, .param .u32 n)": f"""{_INDEX}\
{_SECOND}\
    ld.global.f32 %v, [%b];
    setp.lt.f32 %p, %u, %v;
    selp.u32 %x, 1, 0, %p;
    ld.param.u64 %b, [out];
    cvta.to.global.u64 %b, %b;
    st.global.u8 [%b], %x;
""",
    "less_number(.param .u64 out, .param .u64 a, .param .f32 b, .param .u32 n)": f"""{_INDEX}\
    ld.param.f32 %v, [b];
    setp.lt.f32 %p, %u, %v;
    selp.u32 %x, 1, 0, %p;
    ld.param.u64 %b, [out];
    cvta.to.global.u64 %b, %b;
    st.global.u8 [%b], %x;
""",
}


def work_ptx() -> bytes:
    """Module of ``add_array``, ``add_number``, ``double``, ``less_array`` and ``less_number``."""
    kernels = "".join(
        f"\n.visible .entry {head}\n{{{body}DONE:\n    ret;\n}}\n"
        for head, body in _KERNELS.items()
    )
    return f".version 6.0\n.target sm_50\n.address_size 64\n{kernels}".encode()


class CudaWorkbench:
    """Buffers and work of the CUDA driver."""

    def __init__(self, runtime: Runtime, device: CudaDevice) -> None:
        self.runtime, self.device = runtime, device
        self._driver = cast("Conditionals", runtime.driver)
        self._module = self._driver.module(work_ptx(), device)
        # Loaded now: the first use of one may be inside a capture.
        self._functions = {
            name: self._module.function(name)
            for name in (head.partition("(")[0] for head in _KERNELS)
        }

    def _launch(self, name: str, count: int, *args: Any) -> None:
        threads = max(1, min(count, _THREADS))
        blocks = max(1, -(-count // threads))
        self._driver.launch(self._functions[name], blocks, threads, (*args, count))

    def buffer(self, values: Sequence[float]) -> DeviceArray:
        """A float32 buffer outside any pool."""
        return self._driver.buffer(values, "<f4", self.device)

    def flag(self, value: bool) -> DeviceArray:
        """One Bool."""
        return self._driver.buffer([value], "|b1", self.device)

    def index(self, value: int) -> DeviceArray:
        """One int32."""
        return self._driver.buffer([value], "<i4", self.device)

    def read(self, buffer: DeviceArray) -> list[float]:
        """Waits for the device and returns the values."""
        return [float(value) for value in self._driver.read(buffer)]

    def write(self, buffer: DeviceArray, values: Sequence[float]) -> None:
        """Waits for the device, then sets the values from the host."""
        self._driver.write(buffer, values)

    def copy_(self, destination: DeviceArray, source: DeviceArray) -> None:
        """``destination[:] = source``."""
        self._driver.copy(destination, source)

    def add_(self, destination: DeviceArray, source: DeviceArray | float) -> None:
        """``destination += source``."""
        count = len(destination)
        if not isinstance(source, DeviceArray):
            self._launch("add_number", count, destination, float(source))
            return
        if len(source) != count:
            raise ArgumentError(
                doing="adding to",
                subject=repr(destination),
                met=f"the other buffer has {len(source)} elements",
                remedy="Add buffers of one length: nothing broadcasts.",
            )
        self._launch("add_array", count, destination, source)

    def double(self, source: DeviceArray) -> DeviceArray:
        """``source * 2`` in a fresh buffer."""
        made = self._driver.empty(source.shape, "<f4", self.device)
        self._launch("double", len(source), made, source)
        return made

    def less_(self, out: DeviceArray, first: DeviceArray, second: DeviceArray | float) -> None:
        """``out[0] = first[0] < second[0]``."""
        if isinstance(second, DeviceArray):
            self._launch("less_array", 1, out, first, second)
        else:
            self._launch("less_number", 1, out, first, float(second))

    def stream(self) -> Stream:
        """A new non-blocking stream."""
        return self._driver.stream(self.device)

    def on(self, stream: object) -> AbstractContextManager[None]:
        """Makes ``stream`` current in this thread while entered."""
        return self._driver.using(stream, self.device)

    def fork(self) -> Stream:
        """A new stream whose work comes after all work so far on the current one."""
        return self._driver.fork(self.device)

    def join(self, stream: object) -> None:
        """The current stream's next work comes after all work so far on ``stream``."""
        self._driver.join(stream, self.device)

    def fail(self) -> None:
        """Waits for the current stream, which breaks a capture of it."""
        handle = self._driver.handle(None, self.device)
        if isinstance(self._driver.capture_at(handle), Body):
            # A body that is really broken costs its whole graph, and in some drivers the process.
            raise OperationRefused(
                operation="waiting for the stream of a conditional body",
                met="it is capturing",
                remedy="Wait after the replay.",
            )
        with self._driver.activated(self.device):
            self._driver.cu.cuStreamSynchronize(handle, about=f"stream {handle:#x}")

    def synchronize(self) -> None:
        """Waits for all work on the device."""
        self._driver.synchronize(self.device)

    def live_bytes(self) -> int:
        """Device bytes held by arrays of this driver, pools included, after a collection."""
        gc.collect()
        reclaim.drain()
        return self._driver.memory.held_bytes

    def surroundings(self) -> tuple[object, ...]:
        """Current stream and device, and what this thread may call."""
        mode = self._driver.native.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        now = self._driver.cu.cuThreadExchangeStreamCaptureMode(mode)
        self._driver.cu.cuThreadExchangeStreamCaptureMode(now)
        driver = self._driver
        return driver.handle(None, self.device), driver.current_device(), int(now)
