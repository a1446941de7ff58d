"""Graphs of host work: capture, adoption, instantiation, update, inspection."""

from __future__ import annotations

from collections.abc import Callable

from tensorplay_core import pictures
from tensorplay_core.drivers.refusals import refuse_generators
from tensorplay_core.errors import (
    ArgumentTypeError,
    CaptureError,
    GraphStateError,
    TensorplayError,
)
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import IN_PLACE, CaptureMode, CaptureOptions, Update
from tensorplay_core.signature import a_type
from tensorplay_core.topology import Topology

from .capture import Capture
from .device import HOST
from .executable import Executable
from .holdings import Holdings
from .pool import Pools
from .program import Program
from .template import Template
from .turn import Turn

__all__ = ["Graphs"]


class Graphs(Pools):
    """The captures of this driver object, and what becomes of them."""

    @hookimpl
    def tensorplay_graph_begin(
        self,
        device: str,
        stream: object,
        pool: object,
        mode: CaptureMode,
        options: CaptureOptions,
    ) -> Capture:
        """Begins a capture; there is nothing to wait for, since work is done when submitted."""
        self.tensorplay_resolve_device(device)
        refuse_generators(HOST, options)
        own = None if pool is None else self._own_pool(pool, "capturing into")
        if stream is None:
            stream = self.tensorplay_side_stream(HOST, own)
        origin = self._resolved(stream)
        capture = self._capturing.begin(origin, mode=mode, pool=own, options=options)
        capture.previous, capture.thread.stream = capture.thread.stream, origin
        return capture

    @hookimpl
    def tensorplay_graph_adopt(self, stream: object, owner: str) -> Capture:
        """The capture that the stream takes part in."""
        found = self._resolved(stream)
        if found.lane is None:
            raise CaptureError(
                doing=f"taking in a capture of {owner} on",
                subject=str(found),
                met="it is not capturing",
                remedy="Begin the capture first, on this stream.",
            )
        capture = found.lane.capture
        if capture.owner is not None:
            capture.owner, capture.adopted = owner, True
        return capture

    @hookimpl
    def tensorplay_graph_mark(self, capture: Capture) -> int:
        """Nodes recorded so far."""
        return len(capture.recording.nodes)

    @hookimpl
    def tensorplay_graph_end(self, capture: Capture) -> Template:
        """Ends a capture; of an adopted one, hands over what its owner ended."""
        self._own_capture(capture)
        if capture.owner is not None:
            if capture.template is not None:
                return capture.template
            raise GraphStateError(
                doing="ending",
                subject=str(capture),
                met=f"it is {capture.owner}'s to end",
                remedy="Let it end the capture first.",
            )
        if capture.over or capture.parent is not None:
            raise GraphStateError(
                doing="ending",
                subject=str(capture),
                met="it is over" if capture.over else "it is a body",
                remedy="End a capture once; leave bodies to conditional_exit.",
            )
        return self._capturing.end(capture)

    @hookimpl
    def tensorplay_graph_abort(self, capture: Capture, error: BaseException | None) -> None:
        """Discards a capture and the bodies in it; of an adopted one, only the bodies."""
        kept = capture.owner is not None
        inner = capture.inner if kept else capture
        if inner is None or inner.over:
            return
        if inner.parent is not None:
            self._break(inner, error)
        self._capturing.finish(inner)

    def _break(self, body: Capture, cause: BaseException | None) -> None:
        """Marks the capture of a body that was given up: its node has half a body."""
        if isinstance(cause, TensorplayError):
            broken = cause
        else:
            broken = GraphStateError(
                doing="capturing",
                subject=str(body),
                met="it was given up" + (f" after {type(cause).__name__}" if cause else ""),
                remedy="Capture again.",
            )
            broken.__cause__ = cause
        body.break_by(broken, str(body), self._capturing.threads.state)

    def _own_capture(self, capture: object) -> None:
        if not isinstance(capture, Capture):
            raise ArgumentTypeError(
                doing="using",
                subject=repr(capture),
                met=f"{a_type(capture)} is no capture of the host driver",
                remedy="Pass what graph_begin, graph_adopt or conditional_open returned.",
            )

    @hookimpl
    def tensorplay_graph_instantiate(self, template: Template) -> Executable:
        """One callable a node, in the order of submission."""
        return Executable(self._program(template), self._capturing, self._resolved)

    def _program(self, template: Template) -> Program:
        return Program.of(template, self._limit())

    def _limit(self) -> Callable[[], int]:
        return lambda: self.loop_limit

    @hookimpl
    def tensorplay_executable_adopt(
        self, template: Template, raw: Callable[[], object], owner: object
    ) -> Executable:
        """Wraps a callable that somebody else made from the template."""
        if not callable(raw):
            raise ArgumentTypeError(
                doing="adopting",
                subject=f"an executable of {template!r}",
                met=f"it is {raw!r}",
                remedy="Pass something that can be called without arguments.",
            )
        holdings = Holdings()
        holdings.keep(template.holdings)
        holdings.keep(owner)
        program = Program((raw,), names=("adopted",), holdings=holdings, turn=Turn())
        return Executable(program, self._capturing, self._resolved)

    @hookimpl
    def tensorplay_executable_id(self, executable: Executable) -> int:
        """0: no profiler knows it."""
        return 0

    @hookimpl
    def tensorplay_graph_update(self, executable: Executable, template: Template) -> Update:
        """Puts the new work into the executable if kinds, edges and conditionals are the same."""
        reason = executable.difference(template.recording("updating an executable from"))
        if reason:
            return Update(in_place=False, reason=reason)
        executable.replace(self._program(template))
        return IN_PLACE

    @hookimpl
    def tensorplay_graph_topology(self, template: Template) -> Topology:
        """Nodes in order of submission; edges from streams and events."""
        return template.recording("reading the topology of").topology("graph")

    @hookimpl
    def tensorplay_graph_dot(self, template: Template, verbose: bool) -> str:
        """The topology as DOT: the host has no form of its own."""
        return pictures.to_dot(self.tensorplay_graph_topology(template), verbose=verbose)

    @hookimpl
    def tensorplay_graph_capturing(self, device: str) -> bool:
        """True if this thread's current stream is capturing."""
        return self.current.capturing
