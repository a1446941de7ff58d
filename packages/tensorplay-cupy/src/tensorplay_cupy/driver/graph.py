"""Hooks of a graph: captured by the CUDA driver on a stream that is CuPy's current one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import cupy

from tensorplay_core.errors import (
    CaptureError,
    DriverCallFailed,
    DriverError,
    OperationRefused,
)
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import (
    Capture,
    CaptureMode,
    CaptureOptions,
    Executable,
    Pool,
    Template,
    Update,
)
from tensorplay_core.protocols import Device as DeviceName
from tensorplay_core.topology import Topology
from tensorplay_cupy import captures, plans, streams
from tensorplay_cupy.captures import CupyCapture
from tensorplay_cupy.linalg import libraries
from tensorplay_cupy.memory import PoolAllocator
from tensorplay_cupy.operands import Operand, Operands, witnesses
from tensorplay_cupy.refusals import caller, refusal_of

from .pool import Pools

__all__ = ["Graphs"]


class Graphs(Pools):
    """The graph noun."""

    @hookimpl
    def tensorplay_graph_begin(
        self,
        device: DeviceName,
        stream: object,
        pool: Pool,
        mode: CaptureMode,
        options: CaptureOptions,
    ) -> CupyCapture:
        """Begins a capture; its stream, its pool and its device are CuPy's until it ends."""
        runtime = self.base.runtime
        if stream is None:
            stream = runtime.side_stream(device, pool)
        chosen = self.cupy_stream(stream, device)
        plans.watch(captures.innermost)
        libraries.prepare(device)
        self._settle()
        begun: list[Capture] = []
        try:
            inner = runtime.graph_begin(device, stream, pool, mode, replace(options, begun=begun))
            capture = CupyCapture(device, inner, PoolAllocator(self.base), options)
        except BaseException as error:
            for made in begun:
                runtime.graph_abort(made, error)
            raise
        try:
            if options.track_operands or options.check_input_liveness:
                capture.operands = Operands()
            capture.enter(chosen)
        except BaseException as error:
            capture.operands = None
            runtime.graph_abort(inner, error)
            raise
        options.begun.append(capture)
        return capture

    def _settle(self) -> None:
        """Waits for the work on CuPy's current stream, which the driver beneath knows not."""
        if not streams.capturing():
            with self.base.driver.relaxed():
                cupy.cuda.get_current_stream().synchronize()

    @hookimpl
    def tensorplay_graph_adopt(self, stream: object, owner: str) -> CupyCapture:
        """A capture that CuPy itself or another library began; its memory is its owner's care."""
        inner = self.base.runtime.graph_adopt(stream, owner)
        options = CaptureOptions(track_operands=False)
        return CupyCapture(inner.device, inner, PoolAllocator(self.base), options, adopted=True)

    @hookimpl
    def tensorplay_graph_mark(self, capture: CupyCapture) -> int:
        """As the driver beneath counts."""
        return self.base.runtime.graph_mark(capture.inner)

    @hookimpl
    def tensorplay_graph_end(self, capture: CupyCapture) -> Template:
        """Ends the capture, once the graph has what its nodes mention; all is as before it."""
        unclaimed: CaptureError | DriverError | None = None
        try:
            self._claim(capture)
        except (CaptureError, DriverError) as error:
            unclaimed = error  # A broken capture tells nothing; its end says why.
        notes: list[str] = []
        capture.leave(notes.append)
        capture.allocator.seal()
        try:
            template = self.base.runtime.graph_end(capture.inner)
        except BaseException as error:
            capture.plans.settle(kept=False)
            for note in notes:
                error.add_note(note)
            raise
        capture.plans.settle(kept=True)
        if unclaimed is not None:
            template.close()
            raise unclaimed
        return template

    def _claim(self, capture: CupyCapture) -> None:
        """Gives the graph what it uses: operands, callbacks, plans."""
        owned: list[object] = [*capture.plans.taken]
        if capture.callbacks:
            owned.append(capture.callbacks)
        used = self._used(capture)
        watched = capture.options.check_input_liveness
        operands = witnesses(used) if watched else [one.memory for one in used]
        self.base.driver.retain(capture.stream, operands, always=owned)

    def _used(self, capture: CupyCapture) -> list[Operand]:
        looking, capture.operands = capture.operands, None
        if looking is None:
            return []
        born = capture.allocator.blocks
        try:
            return looking.used(self.base.driver.mentioned(capture.inner), born)
        except DriverCallFailed:
            # A node that cannot be read may use anything.
            return looking.all(born)
        finally:
            # What is raised keeps this frame alive, and would keep every array of the process.
            looking.forget()

    @hookimpl
    def tensorplay_graph_abort(
        self, capture: CupyCapture, error: BaseException | None
    ) -> BaseException | None:
        """Discards the capture, bodies first, and puts back what was current before."""

        def note(sentence: str) -> None:
            if error is not None:
                error.add_note(sentence)

        capture.leave(note)
        capture.operands = None
        self.base.runtime.graph_abort(capture.inner, error)
        capture.plans.settle(kept=False)
        capture.allocator.seal()
        return refusal_of(error) if error is not None else None

    @hookimpl
    def tensorplay_graph_instantiate(self, template: Template) -> Executable:
        """An executable that launches on CuPy's current stream unless told where."""
        device = int(cast("Any", template).device)
        return self.base.driver.make_executable(template, current=streams.current_of(device))

    @hookimpl
    def tensorplay_executable_adopt(
        self, template: Template, raw: Any, owner: object
    ) -> Executable:
        """Wraps an executable of another library (a ``cupy.cuda.Graph``'s ``graphExec``)."""
        return self.base.runtime.executable_adopt(template, raw, owner)

    @hookimpl
    def tensorplay_executable_id(self, executable: Executable) -> int:
        """As the driver beneath says."""
        return self.base.runtime.executable_id(executable)

    @hookimpl
    def tensorplay_graph_update(self, executable: Executable, template: Template) -> Update:
        """In place where the driver beneath can."""
        return self.base.runtime.graph_update(executable, template)

    @hookimpl
    def tensorplay_graph_topology(self, template: Template) -> Topology:
        """Nodes, kernels by their names, edges and bodies."""
        return self.base.runtime.graph_topology(template)

    @hookimpl
    def tensorplay_graph_dot(self, template: Template, verbose: bool) -> str:
        """The CUDA driver's own DOT text."""
        return self.base.runtime.graph_dot(template, verbose)

    @hookimpl
    def tensorplay_graph_capturing(self, device: int) -> bool:
        """True if CuPy's current stream of this thread captures, whoever began it."""
        with cupy.cuda.Device(int(device)):
            return streams.capturing()

    def keep(self, *objects: object) -> None:
        """The graph that CuPy's current stream is captured into keeps these; else nothing."""
        capture = captures.outermost()
        if capture is not None:
            self.base.driver.retain(capture.stream, (), always=objects)

    def call_back(self, function: Callable[[None], object]) -> None:
        """Calls ``function(None)`` on the host in the order of CuPy's current stream."""
        stream = cupy.cuda.get_current_stream()
        if stream._graph_host_funcargs is not None or not streams.capturing():
            stream.launch_host_func(function, None)
            return
        if captures.outermost() is None:
            raise OperationRefused(
                operation="calling the host from a forked stream",
                where=caller(),
                met="another library began the capture, so no graph of ours can keep the function",
                remedy="Call it on the stream that began the capture, or begin the capture with "
                "tensorplay_cupy.graph().",
            )
        kept: list[object] = []
        # CuPy retains callbacks on the stream that began the capture alone; this is a forked one.
        stream._graph_host_funcargs = kept
        try:
            stream.launch_host_func(function, None)
        finally:
            stream._graph_host_funcargs = None
        self.keep(kept)
