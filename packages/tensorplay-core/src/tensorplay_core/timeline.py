"""Which scope of ``annotate`` each node of a capture was captured in.

Nodes stand in a graph in the order of their creation, on every driver and version. So it is enough
to note, whenever the scope changes, how many nodes there are; nothing is done per node.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import TensorplayError
from .protocols import Capture
from .topology import Body, Node, Topology

__all__ = ["Timeline", "timelines_here"]

# Of the captures under way, by the thread that makes them.
_timelines: dict[int, list[Timeline]] = {}


@dataclass(slots=True)
class _Level:
    """One graph or body.

    Attributes:
        counts: From how many nodes on each of the scopes holds.
        scopes: Those scopes, and further facts about their nodes.
        opened: The conditionals opened in it: between which counts they stand, and their bodies.
    """

    counts: list[int] = field(default_factory=list)
    scopes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    opened: list[tuple[int, int, tuple[_Level, ...]]] = field(default_factory=list)

    def note(self, count: int, scope: str, facts: Mapping[str, Any]) -> None:
        if self.counts and self.counts[-1] == count:
            # Nothing was captured since the last change.
            self.scopes[-1] = (scope, facts)
        else:
            self.counts.append(count)
            self.scopes.append((scope, facts))


class Timeline:
    """The scopes of one capture. ``CaptureOptions.timeline`` is what drivers see of it.

    Args:
        count: How many nodes were captured so far directly into a capture or body.
        scope: The scope that is open.

    Attributes:
        scope: The scope that is open in the thread that captures.
        failed: Why the nodes could not be counted, if they could not.
    """

    def __init__(self, count: Callable[[Capture], int], scope: str) -> None:
        self.scope = scope
        self.failed: TensorplayError | None = None
        self._count = count
        self._followers: list[Callable[[str], None]] = []
        self._root = _Level()
        self._open: list[tuple[Capture, _Level]] = []
        self._levels: dict[Capture, _Level] = {}
        self._thread = 0

    def begin(self, capture: Capture) -> None:
        """The capture began, in this thread."""
        self._thread = threading.get_ident()
        self._root.note(0, self.scope, {})
        self._open.append((capture, self._root))
        _timelines.setdefault(self._thread, []).append(self)

    def end(self) -> None:
        """The capture is over. Idempotent."""
        here = _timelines.get(self._thread, [])
        if self in here:
            here.remove(self)
            if not here:
                del _timelines[self._thread]
        self._open.clear()
        self._levels.clear()
        self._followers.clear()

    def change(self, scope: str) -> None:
        """Another scope is open from here on."""
        self.scope = scope
        self._mark(scope, {})
        for follower in self._followers:
            follower(scope)

    def follow(self, follower: Callable[[str], None]) -> None:
        """Calls ``follower`` with each scope that is opened or returned to, until the end."""
        self._followers.append(follower)

    def place(self, scope: str, **facts: Any) -> None:
        """Work captured from here to ``resume``, by any thread, belongs to ``scope``.

        Args:
            scope: As ``self.scope`` was when that was open.
            facts: Further attributes of its nodes.
        """
        self._mark(scope, facts)

    def resume(self) -> None:
        """Work belongs to the scope that is open again."""
        self._mark(self.scope, {})

    def mark(self) -> int:
        """How many nodes there are in the innermost body, or in the capture."""
        if self._open and self.failed is None:
            try:
                return self._count(self._open[-1][0])
            except TensorplayError as error:
                # Of a broken capture nothing is counted. What broke it must surface, not this.
                self.failed = error
        return 0

    def opened(self, before: int, bodies: tuple[Capture, ...]) -> None:
        """A conditional was opened in the innermost body, which had ``before`` nodes then."""
        levels = tuple(_Level() for _ in bodies)
        self._levels.update(zip(bodies, levels, strict=True))
        self._open[-1][1].opened.append((before, self.mark(), levels))

    def enter(self, body: Capture) -> None:
        """Work goes into ``body`` from here on."""
        level = self._levels[body]
        level.note(0, self.scope, {})
        self._open.append((body, level))

    def leave(self) -> None:
        """The innermost body ended."""
        self._open.pop()
        self._mark(self.scope, {})

    def _mark(self, scope: str, facts: Mapping[str, Any]) -> None:
        if self._open:
            self._open[-1][1].note(self.mark(), scope, facts)

    def applied(self, topology: Topology) -> Topology:
        """The topology of what was captured, with the scopes as attribute ``annotation``."""
        return _annotated(topology, self._root)


def timelines_here() -> tuple[Timeline, ...]:
    """Those of the captures that this thread makes."""
    return tuple(_timelines.get(threading.get_ident(), ()))


def _annotated(topology: Topology, level: _Level) -> Topology:
    nodes = [_scoped(node, level) for node in topology.nodes]
    for before, after, levels in level.opened:
        # An if/else may have become two nodes of one body each.
        inner = iter(levels)
        for place in range(before, min(after, len(nodes))):
            node = nodes[place]
            if node.kind == "conditional":
                bodies = tuple(_within(body, next(inner, None)) for body in node.bodies)
                nodes[place] = replace(node, bodies=bodies)
    return replace(topology, nodes=tuple(nodes))


def _scoped(node: Node, level: _Level) -> Node:
    place = bisect_right(level.counts, node.index) - 1
    scope, facts = level.scopes[place] if place >= 0 else ("", {})
    if not scope:
        return node
    return replace(node, attributes={**node.attributes, "annotation": scope, **facts})


def _within(body: Body, level: _Level | None) -> Body:
    return body if level is None else replace(body, topology=_annotated(body.topology, level))
