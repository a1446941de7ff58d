"""Hooks of a graph: capture, adoption, instantiation, update, inspection, staging."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import CaptureMode, CaptureOptions, StagePlan, Update
from tensorplay_core.topology import Topology

from . import operands, topology
from .arrays import DeviceArray, view
from .captures import CudaCapture, CudaTemplate
from .capturing import Captures
from .contexts import CudaDevice
from .executable import CudaExecutable
from .failures import failure
from .gaps import Gaps
from .pool import CudaPool
from .staging import staged
from .updating import update

__all__ = ["Graphs"]


class Graphs(Captures):
    """Devices, pools and captures, with graphs."""

    @hookimpl
    def tensorplay_graph_begin(
        self,
        device: CudaDevice,
        stream: object,
        pool: CudaPool,
        mode: CaptureMode,
        options: CaptureOptions,
    ) -> CudaCapture:
        """Begins a capture, after waiting for the device, and makes its stream current."""
        return self._begin(device, stream, pool, mode, options)

    @hookimpl
    def tensorplay_graph_adopt(self, stream: object, owner: str) -> CudaCapture:
        """Takes in a capture that another library began. The current stream stays as it is."""
        return self._adopt(stream, owner)

    @hookimpl
    def tensorplay_graph_mark(self, capture: CudaCapture) -> int:
        """Nodes captured so far; one native call, however many they are."""
        return self.cu.count_nodes(capture.graph, about=repr(capture))

    @hookimpl
    def tensorplay_graph_end(self, capture: CudaCapture) -> CudaTemplate:
        """Ends the capture; of an adopted one, which its owner has ended, makes the template."""
        return self._end(capture)

    @hookimpl
    def tensorplay_graph_abort(self, capture: CudaCapture, error: BaseException | None) -> None:
        """Ends and discards a capture that failed. Of an adopted one it ends the bodies only.

        The owner of an adopted capture then ends that. If it is ``poisoned``, the owner must never
        destroy the graph it gets. At last it calls ``bury``.
        """
        self._abort(capture, error)

    @hookimpl
    def tensorplay_graph_instantiate(self, template: CudaTemplate) -> CudaExecutable:
        """Makes a template executable."""
        return self.make_executable(template)

    def make_executable(
        self,
        template: CudaTemplate,
        raw: Any = None,
        owner: object = None,
        current: Callable[[], int] | None = None,
    ) -> CudaExecutable:
        """Wraps ``raw`` of an ``owner``, or one that is made here; see ``CudaExecutable``."""
        if owner is None:
            native = self._instantiated(template.live())
        else:
            native = self.native.CUgraphExec(int(raw))
        return CudaExecutable(self, template, native, current=current, owner=owner)

    def _instantiated(self, template: CudaTemplate) -> Any:
        with self.inside(template.device):
            code, native = self.cu.raw("cuGraphInstantiate")(template.graph, 0)
            if not code:
                return native
            error = failure(self.native, "cuGraphInstantiate", int(code), about=template.subject)
            asked = self.native.CUDA_GRAPH_INSTANTIATE_PARAMS()
            code, native = self.cu.raw("cuGraphInstantiateWithParams")(template.graph, asked)
            if not code:
                return native
        error.add_note(f"The driver's reason: {asked.result_out.name}")
        if int(asked.hErrNode_out):
            nodes = [int(node) for node in template.nodes]
            if int(asked.hErrNode_out) in nodes:
                place = nodes.index(int(asked.hErrNode_out))
                error.add_note(f"The node it stops at: number {place}")
        raise error

    @hookimpl
    def tensorplay_executable_adopt(
        self, template: CudaTemplate, raw: Any, owner: object
    ) -> CudaExecutable:
        """Wraps an executable of another library, which destroys it after ``close``.

        A callable ``owner.current_stream`` gives the handle of the current stream.
        """
        current = getattr(owner, "current_stream", None)
        return self.make_executable(template, raw, owner, current if callable(current) else None)

    @hookimpl
    def tensorplay_executable_id(self, executable: CudaExecutable) -> int:
        """As CUPTI has it, from driver 13.1 on."""
        if not topology.tells_ids(self):
            return 0
        return int(self.cu.cuGraphExecGetId(executable.native, about=executable.subject))

    @hookimpl
    def tensorplay_graph_update(self, executable: CudaExecutable, template: CudaTemplate) -> Update:
        """Refreshes an executable in place, or says what keeps it from that."""
        return update(self, executable, template)

    @hookimpl
    def tensorplay_graph_topology(self, template: CudaTemplate) -> Topology:
        """Nodes, names, sizes, edges and bodies."""
        live = template.live()
        return topology.read(self, live.graph, live.branches, label=live.subject)

    def mentioned(self, capture: CudaCapture) -> set[int]:
        """Every 64-bit value in the parameters of the work captured so far; see ``operands``."""
        return operands.mentioned(self, capture)

    def gaps(self, stream: int) -> Gaps:
        """Finds nodes of the capture on ``stream`` that a framework was not seen to make."""
        about = f"the capture on stream {stream:#x}"
        _, _, graph, *_ = self.cu.cuStreamGetCaptureInfo(stream, about=about)
        # A capture that is broken already has none, and no nodes.
        return Gaps(self, self.native.CUgraph(0) if graph is None else graph, about)

    @hookimpl
    def tensorplay_graph_dot(self, template: CudaTemplate, verbose: bool) -> str:
        """The driver's own DOT text."""
        flags = self.native.CUgraphDebugDot_flags.CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE if verbose else 0
        handle, path = tempfile.mkstemp(suffix=".dot")
        os.close(handle)
        try:
            self.cu.cuGraphDebugDotPrint(
                template.live().graph, path.encode(), int(flags), about=template.subject
            )
            return Path(path).read_text(encoding="utf-8")
        finally:
            Path(path).unlink()

    @hookimpl
    def tensorplay_graph_capturing(self, device: CudaDevice) -> bool:
        """True if this thread's current stream is capturing."""
        return self.is_capturing(self.handle(None, device))

    @hookimpl
    def tensorplay_stage(
        self, executable: CudaExecutable, static_inputs: Sequence[Any], results: Sequence[Any]
    ) -> StagePlan:
        """Staged launches of arrays of any library; results are arrays of this driver."""
        return self.staged(
            executable,
            static_inputs,
            results,
            check=self.tensorplay_signature_check(static_inputs),
            pointer=_pointer_of(static_inputs),
            allocate=self.tensorplay_array_like,
            using=lambda stream: self.using(stream, executable.device),
        )

    def staged(
        self,
        executable: CudaExecutable,
        static: Sequence[Any],
        results: Sequence[Any],
        **ways: Any,
    ) -> StagePlan:
        """Staged launches with a framework's own checks and allocator; see ``staging.staged``."""
        return staged(self, executable, static, results, **ways)


def _pointer_of(static: Sequence[Any]) -> Callable[[Any], int]:
    if all(type(array) is DeviceArray for array in static):
        return attrgetter("pointer")
    return lambda array: view(array).pointer
