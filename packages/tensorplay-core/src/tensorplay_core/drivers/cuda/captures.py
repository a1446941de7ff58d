"""Captures under way, the bodies inside them, and the templates that come out."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorplay_core import reclaim
from tensorplay_core.errors import GraphStateError
from tensorplay_core.places import user_place
from tensorplay_core.protocols import ConditionalKind
from tensorplay_core.signature import named

from . import topology

if TYPE_CHECKING:
    from .contexts import CudaDevice
    from .pool import CudaPool
    from .streams import Stream
    from .work import Work

__all__ = ["Body", "Branches", "Conditional", "CudaCapture", "CudaTemplate", "Owned"]

_serials = itertools.count(1)


class Owned:
    """What a graph keeps alive, shared by its template and every executable made from it.

    Attributes:
        strong: Kept as long as the graph can run.
        watched: Held weakly: a replay after one died would read what is no longer there.
    """

    def __init__(self) -> None:
        self.strong: list[object] = []
        self.watched: list[weakref.ref[object]] = []
        self.dead: list[str] = []
        self._seen: set[int] = set()

    def __bool__(self) -> bool:
        """True if it keeps or watches anything."""
        return bool(self.strong or self.watched)

    def keep(self, owned: object) -> None:
        """Keeps it, once however often it is given."""
        if id(owned) not in self._seen:
            self._seen.add(id(owned))
            self.strong.append(owned)

    def watch(self, observed: object) -> None:
        """Notes its death in ``dead``, with the place."""
        dead, name = self.dead, named(observed)

        def note(_: object) -> None:
            place = "" if sys.is_finalizing() else user_place()
            dead.append(f"{name}, let go at {place}" if place else name)

        self.watched.append(weakref.ref(observed, note))


@dataclass(eq=False, kw_only=True)
class CudaCapture:
    """One capture, or a body inside it.

    Attributes:
        device: The GPU.
        stream: Handle of the stream that is captured.
        parent: The capture that this is a body of.
        id: The driver's id of the capture; 0 for a body that is not open.
        graph: The graph that work goes into.
        owner: Who began it and will end it, ``""`` if this driver did.
        owned: What the graph keeps alive.
        pools: Pools that allocations come from, the innermost routing last.
        make_pool: Makes the first, if there is none when one is wanted.
        track: Keep the operands of captured work alive; with ``watch`` notice their death instead.
        conditionals: Conditional nodes added directly to it.
        open: Bodies entered and not left, the innermost last (of the outermost capture only).
        restore: Makes current again what was current before.
        poisoned: Why its graph must never be destroyed, ``""`` if it may be.
        was_whole: It had not been invalidated when it was unwound.
        broken: Bodies that an illegal call invalidated, not ended yet, the outermost first.
    """

    device: CudaDevice
    stream: int
    graph: Any
    id: int = 0
    parent: CudaCapture | None = None
    owner: str = ""
    owned: Owned = field(default_factory=Owned)
    pools: list[CudaPool] = field(default_factory=list)
    make_pool: Callable[[], CudaPool] | None = None
    track: bool = True
    watch: bool = False
    conditionals: list[Conditional] = field(default_factory=list)
    open: list[Body] = field(default_factory=list)
    restore: Callable[[], None] | None = None
    poisoned: str = ""
    was_whole: bool = True
    broken: list[Body] = field(default_factory=list)
    serial: int = field(default_factory=lambda: next(_serials))

    @property
    def root(self) -> CudaCapture:
        """The outermost capture."""
        return self if self.parent is None else self.parent.root

    @property
    def pool(self) -> CudaPool:
        """Where its work allocates from."""
        if not self.pools and self.parent is not None:
            return self.parent.pool
        if not self.pools and self.make_pool is not None:
            made = self.make_pool()
            # First: an interrupt in between leaves a pool that nothing came from.
            self.owned.keep(made)
            self.pools.append(made)
        return self.pools[-1]

    @property
    def key(self) -> Hashable:
        """What memory freed by its work is filed under."""
        return self.stream

    def __repr__(self) -> str:
        return f"the capture on stream {self.stream:#x} of {self.device}"

    def finish(self) -> None:
        """Lets go of everything: what came out of it has it now, and nothing may linger here."""
        for conditional in [one for outer in self.conditionals for one in outer.walk()]:
            conditional.predicate = conditional.counter = None
        self.owned, self.conditionals, self.open, self.pools = Owned(), [], [], []
        self.make_pool = None

    def retain(self, operand: object, born: int) -> None:
        """Captured work uses ``operand``, whose memory was born in capture ``born`` (0: in none).

        Memory of the capture's own pool is not kept: that would defeat its reuse.
        """
        root = self.root
        if born == root.serial:
            return
        if root.watch:
            root.owned.watch(operand)
        elif root.track:
            root.owned.keep(operand)


@dataclass(eq=False, kw_only=True)
class Body(CudaCapture):
    """One body of a conditional node.

    Attributes:
        node: The node it belongs to.
        role: ``"then"``, ``"else"``, ``"body"``, ``"case 0"`` ...
        seed: An empty node, where the driver cannot run a body without nodes.
        lane: The stream it is captured on, made when it is entered.
        lent: Its lane was set before and goes back to whoever set it: torch's allocator and
            libraries go on naming a stream after the body, so it must not be destroyed.
        frontier: Nodes of its parent's frontier once its own node was added.
        sampled: The frontier right after its condition was set last.
    """

    node: Conditional
    role: str
    seed: tuple[Any, ...] = ()
    lane: Stream | None = None
    lent: bool = False
    frontier: tuple[int, ...] = ()
    sampled: tuple[int, ...] | None = None

    @property
    def key(self) -> Hashable:
        """Each body of its own: streams are made anew, and the driver reuses their handles."""
        return "body", self.serial

    def __repr__(self) -> str:
        return f"the {self.role} body of a {self.node.kind.value} node in {self.root!r}"


@dataclass(eq=False, kw_only=True)
class Conditional:
    """One conditional node.

    Attributes:
        kind: What it does with its bodies.
        node: The native node.
        handle: The native condition.
        predicate: The array it was opened with.
        counter: Runs of a bounded loop's body, in device memory; None without a bound.
        limit: The most runs.
        bodies: Its bodies.
    """

    kind: ConditionalKind
    node: Any
    handle: int
    predicate: Any
    counter: Any = None
    limit: int = 0
    bodies: tuple[Body, ...] = ()

    def walk(self) -> Iterator[Conditional]:
        """It and those inside its bodies."""
        yield self
        for body in self.bodies:
            for inner in body.conditionals:
                yield from inner.walk()


class Branches(NamedTuple):
    """What is remembered of a conditional node once its capture is over.

    Attributes:
        kind: ``"if"``, ``"while"`` or ``"switch"``.
        bodies: Role and native graph of each body.
    """

    kind: str
    bodies: tuple[tuple[str, Any], ...]


class CudaTemplate:
    """A captured graph.

    Args:
        work: The driver.
        device: Where it was captured.
        graph: The native graph.
        owner: Who destroys it; None if this object does. It is kept alive.
        capture: What it came from; None if this driver knows of nothing but the graph.
    """

    def __init__(
        self,
        work: Work,
        device: CudaDevice,
        graph: Any,
        owner: object = None,
        capture: CudaCapture | None = None,
    ) -> None:
        self.device = device
        self.owned = Owned() if capture is None else capture.owned
        self.graph = graph
        self.branches = {} if capture is None else _branches(capture)
        self._nodes: list[Any] | None = None
        self._count: int | None = None
        self._functions: tuple[int, ...] | None = None
        self._owner = owner
        self._work = work
        self._end: weakref.finalize[Any, Any] | None = None
        if owner is None:
            self._end = weakref.finalize(self, _destroy_graph, work, device, graph)
            self._end.atexit = False
        self.closed = False

    @property
    def subject(self) -> str:
        """What errors call it."""
        return f"graph {int(self.graph):#x} on {self.device}"

    @property
    def nodes(self) -> list[Any]:
        """The native nodes at its top level, none once it is closed. Read when first asked for."""
        if self._nodes is None:
            self._nodes = self._work.cu.nodes(self.graph, about=self.subject)
        return self._nodes

    @property
    def node_count(self) -> int:
        """Nodes at its top level."""
        if self._count is None:
            self._count = topology.count(self._work, self)
        return self._count

    def functions(self) -> tuple[int, ...] | None:
        """What its nodes run: equal tuples do the same work, perhaps on other memory.

        None if it holds other graphs, whose nodes would count too, and if nobody asked before it
        was closed.
        """
        if self._functions is None and not self.closed:
            self._functions = topology.functions(self._work, self.graph, lambda: self.nodes)
        return self._functions

    def __repr__(self) -> str:
        return f"<{self.subject}, {self.node_count} nodes>"

    def retain(self, owned: object) -> None:
        """Keeps ``owned`` alive as long as this template or an executable made from it."""
        self.owned.keep(owned)

    def raw(self) -> int:
        """The native graph, a ``cudaGraph_t`` as int.

        Raises:
            GraphStateError: The template is closed.
        """
        return int(self.live().graph)

    def live(self) -> CudaTemplate:
        """Itself.

        Raises:
            GraphStateError: It is closed.
        """
        if self.closed:
            raise GraphStateError(
                doing="using",
                subject=self.subject,
                met="it is closed",
                remedy="Keep the template open as long as it is asked for, or capture again.",
            )
        return self

    def close(self) -> None:
        """Destroys it. Idempotent. An executable made from it stays whole."""
        self.closed = True
        self._owner = None
        self.owned, self._nodes, self._count = Owned(), [], self._count or 0
        if self._end is not None:
            self._end()


def _branches(capture: CudaCapture) -> dict[int, Branches]:
    return {
        int(found.node): Branches(
            found.kind.value, tuple((body.role, body.graph) for body in found.bodies)
        )
        for one in capture.conditionals
        for found in one.walk()
    }


def _destroy_graph(work: Work, device: CudaDevice, graph: Any) -> None:
    def destroy() -> None:
        with work.inside(device):
            work.cu.cuGraphDestroy(graph, about=f"graph {int(graph):#x} on {device}")

    reclaim.dispose(destroy)
