"""What a graph contains, as plain data that every driver can give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Body", "Node", "Topology"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a graph.

    Attributes:
        index: Its number within its own (sub)graph, from 0, in creation order.
        kind: ``"kernel"``, ``"memcpy"``, ``"memset"``, ``"host"``, ``"empty"``, ``"event_record"``,
            ``"event_wait"``, ``"alloc"``, ``"free"``, ``"child"``, ``"conditional"``, or the
            driver's own word for another kind.
        name: Kernel or operation name, readable; the kind of a conditional (``"while"``).
        attributes: Further facts by name: ``grid``, ``block``, ``bytes``, ``annotation`` ...
        bodies: The graphs of a conditional or child node.
    """

    index: int
    kind: str
    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    bodies: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Nodes, and edges as pairs of node indices; the bodies of conditionals are nested inside.

    Attributes:
        nodes: In creation order; ``nodes[i].index == i``.
        edges: ``(before, after)`` index pairs.
        label: What the graph is called in pictures.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...] = ()
    label: str = "graph"

    def walk(self) -> Iterator[Node]:
        """Yields every node, those of bodies after the node that owns them."""
        for node in self.nodes:
            yield node
            for body in node.bodies:
                yield from body.topology.walk()

    def count(self, kind: str | None = None) -> int:
        """Number of nodes of ``kind`` (of all kinds when None), bodies included."""
        return sum(1 for node in self.walk() if kind is None or node.kind == kind)

    def kinds(self) -> Counter[str]:
        """How many nodes there are of each kind, bodies included."""
        return Counter(node.kind for node in self.walk())


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One body of a conditional node, or the graph of a child node.

    Attributes:
        role: ``"then"``, ``"else"``, ``"body"``, ``"case 0"`` or ``"child"``.
    """

    role: str
    topology: Topology
