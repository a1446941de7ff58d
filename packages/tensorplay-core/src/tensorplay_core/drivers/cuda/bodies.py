"""What may stand in a conditional body, and whether it can end its loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import (
    ConditionalError,
    DriverError,
    OperationRefused,
    UnjoinedWork,
)
from tensorplay_core.signature import named

from . import topology, unwinding

if TYPE_CHECKING:
    from .captures import Body
    from .work import Work

__all__ = ["endless", "refuse_illegal_nodes", "refuse_loose_ends", "writes"]

# By the documentation of conditional nodes; all else fails only at instantiation, without a name.
_LEGAL = {"kernel", "empty", "child", "memset", "memcpy", "conditional"}
_REMEDIES = {
    "host": "Call the host outside the conditional, or do the work on the device.",
    "alloc": "Allocate from the graph's pool, or before the conditional: stream-ordered "
    "allocation (cudaMallocAsync) has no place in a body.",
    "free": "Free after the conditional, or use the graph's pool.",
    "event_record": "Record the event outside the conditional.",
    "event_wait": "Wait for the event outside the conditional.",
}
_OURS = "tensorplay_"


def refuse_illegal_nodes(work: Work, body: Body, nodes: list[Any]) -> None:
    """Raises OperationRefused if a node may not stand in a body, in child graphs included."""
    for place, (kind, within) in enumerate(_kinds(work, nodes)):
        if kind not in _LEGAL:
            raise OperationRefused(
                operation=f"a {kind} node",
                doing="capturing",
                subject=repr(body),
                met=f"node {place}{within} is a {kind} node, which a conditional body cannot have",
                remedy=_REMEDIES.get(kind, "Issue that work outside the conditional."),
            )


def _kinds(work: Work, nodes: list[Any], within: str = "") -> Iterator[tuple[str, str]]:
    for node in nodes:
        kind = topology.kind_of(work, node)
        yield kind, within
        if kind == "child":
            inner = work.cu.cuGraphChildGraphNodeGetGraph(node)
            yield from _kinds(work, work.cu.nodes(inner), " (in a child graph)")


def refuse_loose_ends(work: Work, body: Body, graph: Any, frontier: tuple[Any, ...]) -> None:
    """Raises UnjoinedWork while the capture is whole; at its end the driver would break it."""
    loose = unwinding.loose_ends(work, graph, frontier)
    if loose:
        raise UnjoinedWork(
            doing="ending",
            subject=repr(body),
            met=f"{len(loose)} pieces of work on other streams were not joined back",
            remedy="Before the body ends, record an event on each forked stream and let the "
            "body's stream wait for it.",
        )


def writes(work: Work, body: Body, nodes: list[Any], address: int) -> bool:
    """True if a node of the body, or of what is nested in it, may write at ``address``.

    A node may if the address stands in its parameters: which of them it writes, nobody tells.
    """
    inner = {int(found.node): found for found in body.conditionals}
    return any(_may_write(work, node, address, inner) for node in nodes)


def _may_write(work: Work, node: Any, address: int, conditionals: dict[int, Any]) -> bool:
    kind = topology.kind_of(work, node)
    if kind == "conditional":
        known = conditionals.get(int(node))
        if known is None:  # Another library's node: its bodies cannot be read.
            return True
        return any(
            writes(work, branch, work.cu.nodes(branch.graph), address) for branch in known.bodies
        )
    if kind == "child":
        inner = work.cu.cuGraphChildGraphNodeGetGraph(node)
        return any(_may_write(work, one, address, {}) for one in work.cu.nodes(inner))
    try:
        if kind == "kernel":
            parameters = work.cu.cuGraphKernelNodeGetParams(node)
            # The driver's own setters read predicates and write none.
            if topology.kernel_name(work, parameters).startswith(_OURS):
                return False
        return address in topology.node_words(work, node)
    except DriverError:  # A node that cannot be described may do anything.
        return True


def endless(body: Body, predicate: Any) -> ConditionalError:
    """The error of a loop that nothing can end."""
    return ConditionalError(
        doing="ending",
        subject=repr(body),
        met=f"nothing in it writes {named(predicate)}, which it is decided by, so it never ends",
        remedy="Write the predicate in the body, make loop.condition(p) its last work, or bound "
        "it with max_steps=.",
    )
