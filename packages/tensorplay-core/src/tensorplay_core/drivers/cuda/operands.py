"""Which addresses captured work mentions: how a framework that sees no launch finds operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import topology

if TYPE_CHECKING:
    from .captures import Conditional, CudaCapture
    from .work import Work

__all__ = ["mentioned", "mentioned_by"]


def mentioned(work: Work, capture: CudaCapture) -> set[int]:
    """Every 64-bit value in the parameters of what was captured so far, bodies included.

    Most are no addresses. Inside conditional nodes that another library made nothing can be read.
    """
    return set(_words(work, work.cu.nodes(capture.graph), _by_node(capture.conditionals)))


def mentioned_by(work: Work, nodes: Iterable[Any]) -> set[int]:
    """The same of these nodes alone, without the bodies of conditionals among them."""
    return set(_words(work, nodes, {}))


def _words(work: Work, nodes: Iterable[Any], inner: dict[int, Conditional]) -> Iterator[int]:
    for node in nodes:
        kind = topology.kind_of(work, node)
        if kind == "child":
            child = work.cu.cuGraphChildGraphNodeGetGraph(node)
            yield from _words(work, work.cu.nodes(child), {})
        elif kind == "conditional" and int(node) in inner:
            for body in inner[int(node)].bodies:
                yield from _words(work, work.cu.nodes(body.graph), _by_node(body.conditionals))
        else:
            yield from topology.node_words(work, node)


def _by_node(conditionals: Iterable[Conditional]) -> dict[int, Conditional]:
    return {int(found.node): found for found in conditionals}
