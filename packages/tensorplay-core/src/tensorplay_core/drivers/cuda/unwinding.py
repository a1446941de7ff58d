"""Ends what is left of a capture that failed, in the order that the driver survives.

The driver frees the graph of a conditional body when an *invalidated* capture into it is ended,
although the node still owns it; whatever destroys the node afterwards ends the process (NVIDIA's
bug 6805256, cuda-python issue 2918). So a body that is whole ends before its parent, as it must; a
broken one ends after its parent, whose graph is then kept for good; and where the parent broke too
its end frees the body's graph, so that the body's own end never comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import TensorplayError

from . import topology
from .failures import code_name

if TYPE_CHECKING:
    from .captures import Body, CudaCapture
    from .work import Work

__all__ = ["bury", "loose_ends", "unwind"]

ACTIVE, INVALIDATED = 1, 2


def loose_ends(work: Work, graph: Any, frontier: tuple[Any, ...]) -> list[Any]:
    """Nodes that nothing follows and that the frontier lacks: work on streams not joined.

    Empty nodes are none: allocators put such marks of their own beside the work.
    """
    followed = {int(node) for node, _ in work.cu.edges(graph)}
    joined = {int(node) for node in frontier}
    return [
        node
        for node in work.cu.nodes(graph)
        if int(node) not in followed
        and int(node) not in joined
        and topology.kind_of(work, node) != "empty"
    ]


def without_marks(work: Work, graph: Any, frontier: tuple[Any, ...]) -> set[int]:
    """The frontier as it would be without the empty nodes that allocators put at its end."""
    before: dict[int, list[Any]] = {}
    for node, following in work.cu.edges(graph):
        before.setdefault(int(following), []).append(node)
    found, nodes = set[int](), list(frontier)
    while nodes:
        node = nodes.pop()
        if topology.kind_of(work, node) == "empty":
            nodes += before.get(int(node), [])
        else:
            found.add(int(node))
    return found


def unwind(work: Work, root: CudaCapture, note: Callable[[str], None]) -> None:
    """Ends the open bodies and, unless somebody else is to do it, the capture; discards the graph.

    Args:
        work: The driver.
        root: The outermost capture.
        note: Takes a sentence on whatever does not go as it should.
    """
    bodies, root.open = root.open, []
    broken = [body for body in bodies if _status(work, body) == INVALIDATED]
    for body in reversed(bodies):
        if body not in broken:
            _end_body(work, body, note)
    root.was_whole = _status(work, root) == ACTIVE
    root.broken = broken
    if root.was_whole and broken:
        root.poisoned = "a conditional body was invalidated by an illegal call"
    if not root.owner:
        _end_root(work, root, note)
        bury(work, root, note)


def bury(work: Work, root: CudaCapture, note: Callable[[str], None]) -> None:
    """Ends the broken bodies of a capture that is over, as far as they can be."""
    broken, root.broken = root.broken, []
    for place, body in enumerate(broken):
        if root.was_whole and place == 0:
            # Frees the body's graph and what is nested in it; the graph that owns it is leaked.
            _end(work, body.stream)
        else:
            if body.lane is not None:
                body.lane.abandon()
            note(
                f"{body!r} and {root!r} were both invalidated (by waiting for the whole device?). "
                "The driver cannot end such a body without crashing, so it was left as it is: "
                "waiting for the device may fail from now on. Restart the process."
            )


def _end_body(work: Work, body: Body, note: Callable[[str], None]) -> None:
    try:
        info = work.cu.capture_info(body.stream)
        loose = loose_ends(work, info.graph, info.frontier)
        if loose:
            # A body that ends with unjoined work would be broken, and so its parent's graph.
            work.cu.cuStreamUpdateCaptureDependencies(
                body.stream,
                loose,
                work.cu.edge_data(None, len(loose)),
                len(loose),
                work.native.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_ADD_CAPTURE_DEPENDENCIES,
            )
    except TensorplayError as error:
        note(f"{body!r}: {error}")
    code = _end(work, body.stream)
    if code:
        body.root.poisoned = "a conditional body could not be ended"
        note(f"{body!r}: cuStreamEndCapture returned {code_name(work.native, int(code))}")


def _end_root(work: Work, root: CudaCapture, note: Callable[[str], None]) -> None:
    code, graph = work.cu.raw("cuStreamEndCapture")(root.stream)
    if code or graph is None or not int(graph):
        return  # The driver destroyed it with the capture.
    if root.poisoned:
        note(f"{root!r}: its graph is kept for good, destroying it would end the process")
        return
    code = work.cu.raw("cuGraphDestroy")(graph)[0]
    if code:
        note(f"{root!r}: cuGraphDestroy returned {code_name(work.native, int(code))}")


def _end(work: Work, stream: int) -> Any:
    return work.cu.raw("cuStreamEndCapture")(stream)[0]


def _status(work: Work, capture: CudaCapture) -> int:
    code, status = work.cu.raw("cuStreamIsCapturing")(capture.stream)
    return 0 if code else int(status)
