"""Hooks of conditional nodes: added at a capture's frontier, their bodies captured in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorplay_core.errors import CaptureInvalidated, ConditionalError
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import ConditionalKind

from . import bodies, floors, kernels, unwinding
from .arrays import View
from .bindings import CaptureInfo
from .captures import Body, Conditional, CudaCapture
from .failures import failure
from .graph import Graphs
from .memory import Allocation
from .modules import Arguments
from .predicates import BOOL, INDICES, checked
from .streams import Stream

__all__ = ["Conditionals"]

_TYPES = {
    ConditionalKind.IF: "CU_GRAPH_COND_TYPE_IF",
    ConditionalKind.WHILE: "CU_GRAPH_COND_TYPE_WHILE",
    ConditionalKind.SWITCH: "CU_GRAPH_COND_TYPE_SWITCH",
}


class Conditionals(Graphs):
    """The whole driver: graphs, with conditional nodes."""

    @hookimpl
    def tensorplay_conditional_open(
        self,
        capture: CudaCapture,
        kind: ConditionalKind,
        predicate: Any,
        branches: int,
        first: bool,
        max_steps: int | None,
    ) -> tuple[Body, ...]:
        """Samples the predicate and adds a node after all work captured so far."""
        doing = f"opening a {kind.value} in {capture.root!r}"
        floors.require(self.version, floors.CONDITIONALS, "conditional nodes", doing=doing)
        if kind is ConditionalKind.SWITCH:
            floors.require(self.version, floors.SWITCH, "switch nodes", doing=doing)
        facts = checked(predicate, kind, capture.device, doing=doing)
        self._whole(capture)
        if kind is ConditionalKind.IF and branches == 2 and self.version < floors.ELSE:
            return self._sited(capture, self._two_ifs(capture, predicate, facts))
        node = self._condition(capture, kind, predicate, max_steps)
        self._sample(capture, node, facts, kernels.RESTART | (kernels.ALWAYS if first else 0))
        roles = {
            ConditionalKind.IF: ("then", "else")[:branches],
            ConditionalKind.WHILE: ("body",),
            ConditionalKind.SWITCH: tuple(f"case {place}" for place in range(branches)),
        }[kind]
        return self._sited(capture, self._add(capture, node, roles))

    def _sited(self, capture: CudaCapture, bodies: tuple[Body, ...]) -> tuple[Body, ...]:
        """Notes what came last in the parent when the bodies' nodes were added."""
        frontier = _numbers(self._whole(capture).frontier)
        for body in bodies:
            body.frontier = frontier
        return bodies

    def _refuse_strays(self, body: Body, parent: CudaCapture, when: str) -> None:
        info = self._whole(parent)
        if _numbers(info.frontier) == body.frontier:
            return
        if unwinding.without_marks(self, info.graph, info.frontier) != set(body.frontier):
            raise ConditionalError(
                doing="capturing",
                subject=repr(body),
                met=f"work was issued on its parent's stream {when}, "
                "and would run after it whatever the predicate holds",
                remedy="Issue it before the conditional is opened, inside a body (on the current "
                "stream, or on streams forked from it), or after them all.",
            )

    def _two_ifs(self, capture: CudaCapture, predicate: Any, facts: View) -> tuple[Body, ...]:
        """An if/else for drivers that lack it; both samples come before either body."""
        two = [self._condition(capture, ConditionalKind.IF, predicate, None) for _ in range(2)]
        self._sample(capture, two[0], facts, 0)
        self._sample(capture, two[1], facts, kernels.NEGATE)
        return (
            *self._add(capture, two[0], ("then",)),
            *self._add(capture, two[1], ("else",)),
        )

    def _whole(self, capture: CudaCapture) -> CaptureInfo:
        """The state of a capture, which must not be broken."""
        info = self.cu.capture_info(capture.stream, about=repr(capture))
        if info.status != unwinding.ACTIVE:
            raise CaptureInvalidated(
                doing="capturing",
                subject=repr(capture),
                met="an earlier illegal call broke it" if info.status else "it is over",
                remedy="Find the first call that failed inside the capture: it names the reason.",
            )
        return info

    def _condition(
        self,
        capture: CudaCapture,
        kind: ConditionalKind,
        predicate: Any,
        max_steps: int | None,
    ) -> Conditional:
        handle = self.cu.cuGraphConditionalHandleCreate(
            self._whole(capture).graph, self.context(capture.device), 0, 0, about=repr(capture)
        )
        node = Conditional(kind=kind, node=None, handle=int(handle), predicate=predicate)
        if max_steps is not None:
            # The graph's own: each replay starts it anew, and nobody else may write it.
            node.counter = Allocation(self.memory, 8, capture.device)
            node.limit = max_steps
            capture.root.owned.keep(node.counter)
        return node

    def _sample(self, capture: CudaCapture, node: Conditional, facts: View, options: int) -> None:
        """Captures the kernel that sets the condition from the predicate."""
        if facts.typestr == BOOL:
            name = "tensorplay_set_condition"
            address = node.counter.address if node.counter is not None else None
            # Without a counter there is none to restart.
            options = options & ~kernels.RESTART if address is None else options | kernels.COUNTED
            values = [node.handle, facts.pointer, address, node.limit, options]
            if not values[-1]:
                name, values = "tensorplay_set_plain", values[:2]
        else:
            name = f"tensorplay_set_index{INDICES[facts.typestr]}"
            values = [node.handle, facts.pointer]
        self._one_thread(capture, name, values)
        self.retain(capture.stream, (node.predicate,))

    def _one_thread(self, capture: CudaCapture, name: str, values: Sequence[Any]) -> None:
        function = self.shipped(capture.device, "predicates").function(name)
        arguments = Arguments(function, values)
        with self.activated(capture.device):
            self.cu.cuLaunchKernel(
                function.native,
                *(1, 1, 1),
                *(1, 1, 1),
                0,
                capture.stream,
                arguments.address,
                0,
                about=repr(capture),
            )
        capture.root.owned.keep(function)

    def _add(
        self, capture: CudaCapture, node: Conditional, roles: tuple[str, ...]
    ) -> tuple[Body, ...]:
        native, about = self.native, repr(capture)
        info = self._whole(capture)
        asked = native.CUgraphNodeParams()
        asked.type = native.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        asked.conditional.handle = native.CUgraphConditionalHandle(node.handle)
        asked.conditional.type = getattr(native.CUgraphConditionalNodeType, _TYPES[node.kind])
        asked.conditional.size = len(roles)
        asked.conditional.ctx = self.context(capture.device)
        count = len(info.frontier)
        node.node = self.cu.cuGraphAddNode(
            info.graph, list(info.frontier), list(info.edges), count, asked, about=about
        )
        self.cu.cuStreamUpdateCaptureDependencies(
            capture.stream,
            [node.node],
            self.cu.edge_data(None, 1),
            1,
            native.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES,
            about=about,
        )
        # The bodies may be read only now: before the node is there, reading them ends the process.
        graphs = list(asked.conditional.phGraph_out)[: len(roles)]
        # What is captured into a body comes after its seed, if it has one.
        seeds = [
            (self.cu.cuGraphAddEmptyNode(graph, [], 0, about=about),)
            if self.version < floors.EMPTY_BODIES
            else ()
            for graph in graphs
        ]
        node.bodies = tuple(
            Body(
                device=capture.device,
                stream=0,
                graph=graph,
                parent=capture,
                owner=capture.owner,
                node=node,
                role=role,
                seed=seed,
            )
            for graph, role, seed in zip(graphs, roles, seeds, strict=True)
        )
        capture.conditionals.append(node)
        return node.bodies

    @hookimpl
    def tensorplay_conditional_enter(self, body: Body) -> None:
        """Starts capturing the body on a stream of its own, which becomes current."""
        parent = body.parent
        assert parent is not None
        self._refuse_strays(body, parent, "between its node and the body")
        lane = body.lane or Stream(self, body.device)
        # The parent's mode goes on watching this thread. With a mode of its own the body, too,
        # would be broken by what it forbids, and a broken body cannot be ended safely.
        relaxed = self.native.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self.activated(body.device):
            seed = list(body.seed)
            edges = self.cu.edge_data(None, len(seed))
            self.cu.cuStreamBeginCaptureToGraph(
                lane.handle, body.graph, seed, edges, len(seed), relaxed, about=repr(body)
            )
        body.lane, body.stream = lane, lane.handle
        body.root.open.append(body)
        body.restore = self.make_current(body.device, body.stream)
        body.id = self.cu.capture_info(body.stream, about=repr(body)).id
        self.captures[body.id] = body
        body.pool.arena.lend(parent.key, body.key)
        if body.node.counter is not None:
            self._one_thread(body, "tensorplay_count_step", [body.node.counter.address])

    @hookimpl
    def tensorplay_conditional_set(self, body: Body, predicate: Any) -> None:
        """Samples a predicate for the loop that the body is of."""
        doing = f"setting the condition of {body!r}"
        if body.node.kind is not ConditionalKind.WHILE:
            raise ConditionalError(
                doing="setting the condition of",
                subject=repr(body),
                met=f"a {body.node.kind.value} samples its predicate once, before it",
                remedy="Set the condition of a while body, or open another conditional.",
            )
        facts = checked(predicate, ConditionalKind.WHILE, body.device, doing=doing)
        self._whole(body)
        self._sample(body, body.node, facts, 0)
        self.retain(body.stream, (predicate,))
        body.sampled = _numbers(self._whole(body).frontier)

    @hookimpl
    def tensorplay_conditional_exit(self, body: Body) -> None:
        """Ends the body, checked; its parent's stream is current again."""
        parent = body.parent
        assert parent is not None
        info = self._whole(body)
        self._refuse_strays(body, parent, "while the body was open")
        nodes = self.cu.nodes(body.graph, about=repr(body))
        bodies.refuse_illegal_nodes(self, body, nodes)
        if body.node.kind is ConditionalKind.WHILE:
            self._close_loop(body, info, nodes)
            info = self._whole(body)
        bodies.refuse_loose_ends(self, body, info.graph, info.frontier)
        code = self.cu.raw("cuStreamEndCapture")(body.stream)[0]
        self._left(body, parent)
        if code:
            body.root.poisoned = f"{body!r} could not be ended"
            raise failure(self.native, "cuStreamEndCapture", int(code), about=repr(body))

    def _close_loop(self, body: Body, info: CaptureInfo, nodes: list[Any]) -> None:
        if body.sampled is not None and body.sampled == _numbers(info.frontier):
            return
        predicate = body.node.predicate
        facts = checked(predicate, ConditionalKind.WHILE, body.device, doing=f"ending {body!r}")
        if body.node.counter is None and not bodies.writes(self, body, nodes, facts.pointer):
            raise bodies.endless(body, predicate)
        self._sample(body, body.node, facts, 0)

    def _left(self, body: Body, parent: CudaCapture) -> None:
        body.root.open.remove(body)
        self.captures.pop(body.id, None)
        body.pool.arena.fold(body.key, parent.key)
        if body.restore is not None:
            body.restore()
        if body.lane is not None and not body.lent:
            body.lane.close()

    @hookimpl
    def tensorplay_conditional_read(self, predicate: Any) -> int:
        """Reads a predicate or index back, waiting for it."""
        checked(predicate, None, None, doing="reading back")
        return int(self.read(predicate)[0])


def _numbers(nodes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(sorted(int(node) for node in nodes))
