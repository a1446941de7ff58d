"""What a capture has recorded: nodes in order of submission, which is an order they can run in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorplay_core.protocols import ConditionalKind
from tensorplay_core.topology import Body, Topology
from tensorplay_core.topology import Node as TopologyNode

from .turn import Turn

__all__ = ["Conditional", "Node", "Reader", "Recording", "Work"]

Work = Callable[[], object]
Reader = Callable[[], int]


@dataclass(slots=True, eq=False)
class Conditional:
    """What a conditional node decides by, and on.

    Attributes:
        kind: If, while or switch.
        read: Reads the predicate or index.
        memory: The predicate's memory; None if it is a callable.
        bodies: One recording a body.
        first: A while: run the body before the first look at the predicate.
        max_steps: A while: end after so many runs; None is no bound.
        where: Where the user opened it.
        loop: Stands for a while where its body samples. Not the object itself: nodes of a body that
            referred to what holds the body would keep the work alive until a collection.
    """

    kind: ConditionalKind
    read: Reader
    memory: memoryview | None
    bodies: tuple[Recording, ...]
    first: bool
    max_steps: int | None
    where: str
    loop: object = field(default_factory=object)

    def role(self, branch: int) -> str:
        """What body ``branch`` is called."""
        match self.kind:
            case ConditionalKind.IF:
                return ("then", "else")[branch]
            case ConditionalKind.WHILE:
                return "body"
            case ConditionalKind.SWITCH:
                return f"case {branch}"


@dataclass(slots=True, eq=False)
class Node:
    """One node. Exactly one of ``work``, ``conditional`` and ``sample`` says what it does.

    Attributes:
        kind: As in ``topology.Node``.
        name: Of the operation.
        before: Indices of the nodes it depends on.
        attributes: Further facts.
        work: What it runs.
        conditional: What it decides.
        sample: The ``loop`` of the while whose continuation it decides, and how it reads that.
        child: The graph it launches (whose launch is its ``work``).
        turn: That graph's turn.
    """

    kind: str
    name: str
    before: tuple[int, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    work: Work | None = None
    conditional: Conditional | None = None
    sample: tuple[object, Reader] | None = None
    child: Recording | None = None
    turn: Turn | None = None

    def bodies(self) -> list[tuple[str, Recording]]:
        """Role and recording of each body."""
        if self.child is not None:
            return [("child", self.child)]
        if self.conditional is not None:
            return [(self.conditional.role(i), b) for i, b in enumerate(self.conditional.bodies)]
        return []


class Recording:
    """The nodes of one graph or one body.

    Attributes:
        nodes: In order of submission; every edge goes forward.
    """

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def has_conditionals(self) -> bool:
        """True if it, or a child graph in it, decides anything."""
        return any(
            node.conditional is not None
            or (node.child is not None and node.child.has_conditionals())
            for node in self.nodes
        )

    def turns(self) -> Iterator[Turn]:
        """Those of the child graphs in it."""
        for node in self.nodes:
            if node.turn is not None:
                yield node.turn
            elif node.conditional is not None:
                for body in node.conditional.bodies:
                    yield from body.turns()

    def topology(self, label: str) -> Topology:
        """The same as plain data."""
        return Topology(
            nodes=tuple(
                TopologyNode(
                    index=index,
                    kind=node.kind,
                    name=node.name,
                    attributes=dict(node.attributes),
                    bodies=tuple(
                        Body(role=role, topology=body.topology(role))
                        for role, body in node.bodies()
                    ),
                )
                for index, node in enumerate(self.nodes)
            ),
            edges=tuple((before, i) for i, node in enumerate(self.nodes) for before in node.before),
            label=label,
        )

    def difference(self, other: Recording, place: str = "the graph") -> str:
        """Why an executable of this cannot take over ``other``; ``""`` if it can.

        The rules are those of ``cuGraphExecUpdate``: kinds, edges and the parameters of
        conditionals are fixed, what a node runs and with which operands is not.
        """
        if len(self.nodes) != len(other.nodes):
            return f"{place} has {len(self.nodes)} nodes, the new one {len(other.nodes)}"
        for index, (mine, its) in enumerate(zip(self.nodes, other.nodes, strict=True)):
            here = f"node {index} of {place}"
            if mine.kind != its.kind:
                return f"{here} is a {mine.kind} ({mine.name}), the new one a {its.kind}"
            if mine.before != its.before:
                return f"{here} ({mine.name}) depends on {mine.before}, the new one on {its.before}"
            if mine.conditional is not None and its.conditional is not None:
                was, now = _parameters(mine.conditional), _parameters(its.conditional)
                if was != now:
                    return f"{here} is {was}, the new one {now}"
            if (mine.sample is None) != (its.sample is None):
                return f"{here} ({mine.name}) samples a predicate in only one of them"
            for (role, body), (_, new) in zip(mine.bodies(), its.bodies(), strict=True):
                found = body.difference(new, f"the {role} of {here}")
                if found:
                    return found
        return ""


def _parameters(conditional: Conditional) -> str:
    facts = [conditional.kind.value, f"of {len(conditional.bodies)}"]
    if conditional.first:
        facts.append("with first=True")
    if conditional.max_steps is not None:
        facts.append(f"with max_steps={conditional.max_steps}")
    return " ".join(facts)
