"""Hooks of a graph: capture, adoption, instantiation, update, inspection."""

from __future__ import annotations

from typing import Any

from tensorplay_core.protocols import (
    Capture,
    CaptureMode,
    CaptureOptions,
    Device,
    Executable,
    Template,
    Update,
)
from tensorplay_core.topology import Topology

from .markers import hookspec


@hookspec(firstresult=True)
def tensorplay_graph_begin(
    device: Device, stream: object, pool: object, mode: CaptureMode, options: CaptureOptions
) -> Capture:
    """Begins a capture and makes ``stream`` current in this thread.

    Waits for the device first, so that nothing captured races with work issued before. If it
    raises, nothing has changed. ``pool`` is what ``pool_create`` or ``pool_resolve`` returned;
    allocations of the captured stream go to it until the capture ends.
    Raises CaptureError on the legacy stream or on a stream that is already capturing.
    """


@hookspec(firstresult=True)
def tensorplay_graph_adopt(stream: object, owner: str) -> Capture:
    """Takes in a capture that ``owner`` (torch, CuPy, numba) began on ``stream``.

    Conditionals, topology and ``graph_abort`` of its bodies work on it; ending the capture stays
    with its owner. Raises CaptureError if the stream is not capturing.
    """


@hookspec(firstresult=True)
def tensorplay_graph_mark(capture: Capture) -> int:
    """How many nodes were captured so far directly into ``capture``, which may be a body.

    So it is the index that the next node will have: nodes stand in the order of their creation.
    Work of bodies counts in these. What ``annotate`` goes by.
    """


@hookspec(firstresult=True)
def tensorplay_graph_end(capture: Capture) -> Template:
    """Ends the capture and restores the stream that was current before, also when it raises.

    Raises UnjoinedWork or CaptureInvalidated; the capture is over in each case.
    """


@hookspec(firstresult=True)
def tensorplay_graph_abort(capture: Capture, error: BaseException | None) -> BaseException | None:
    """Ends and discards a capture that failed, bodies first, and restores the current stream.

    Never raises; what it meets on the way it adds to ``error`` as notes. Observers do not see it.
    Where ``error`` is a library's own way to say that the capture was broken or refused, it returns
    the error of the tree that says so, to be raised from it; None leaves the user's as it is.
    """


@hookspec(firstresult=True)
def tensorplay_graph_instantiate(template: Template) -> Executable:
    """Makes a template executable. What the template retains, the executable retains."""


@hookspec(firstresult=True)
def tensorplay_executable_adopt(template: Template, raw: Any, owner: object) -> Executable:
    """Wraps a native executable that somebody else made and destroys; ``owner`` is kept alive."""


@hookspec(firstresult=True)
def tensorplay_executable_id(executable: Executable) -> int:
    """The number by which profilers know the executable; 0 where nothing tells it.

    With it, attribute ``tools_id`` of a top-level node in the topology is that node's own number.
    """


@hookspec(firstresult=True)
def tensorplay_graph_update(executable: Executable, template: Template) -> Update:
    """Refreshes ``executable`` to run ``template``, in place or not at all."""


@hookspec(firstresult=True)
def tensorplay_graph_topology(template: Template) -> Topology:
    """Nodes, names, edges and bodies of a template."""


@hookspec(firstresult=True)
def tensorplay_graph_dot(template: Template, verbose: bool) -> str:
    """The driver's own DOT text of a template."""


@hookspec(firstresult=True)
def tensorplay_graph_capturing(device: Device) -> bool:
    """True if this thread's current stream on ``device`` is capturing, whoever began it."""
