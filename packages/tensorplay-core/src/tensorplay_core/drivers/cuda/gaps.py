"""Nodes of a capture that came while nobody was seen to make them.

A framework sees its own operations and not a kernel that somebody launches past it. It looks before
each operation and passes over what is there after it: what it finds in between is foreign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorplay_core.compiled import counter

from . import operands
from .addresses import bound

if TYPE_CHECKING:
    from .captures import Body, CudaCapture
    from .work import Work

__all__ = ["Gaps"]


class _Span(NamedTuple):
    """Some nodes of one graph, by their places in the order of creation."""

    graph: Any
    start: int
    stop: int


class Gaps:
    """See the module.

    Args:
        work: The driver.
        graph: What the work of the outermost capture goes into.
        about: What that is called.
    """

    def __init__(self, work: Work, graph: Any, about: str) -> None:
        self._work, self._root, self._about = work, graph, about
        self._bodies: Sequence[Body] = ()
        self._number = _counts(work)
        self._known: dict[int, int] = {}
        self._spans: list[_Span] = []

    def __bool__(self) -> bool:
        """True if any node was found."""
        return bool(self._spans)

    def follow(self, capture: CudaCapture) -> None:
        """Looks into the bodies of ``capture``, which is this one as the driver adopted it."""
        self._bodies = capture.open

    def look(self) -> None:
        """Finds the nodes that came since the last look or passing."""
        graph = self._graph()
        known, count = self._known.get(id(graph), 0), self._count(graph)
        if count > known:
            self._spans.append(_Span(graph, known, count))
            self._known[id(graph)] = count

    def pass_over(self) -> None:
        """All nodes so far are accounted for."""
        graph = self._graph()
        self._known[id(graph)] = self._count(graph)

    def words(self) -> set[int]:
        """Every 64-bit value in the parameters of the nodes found; most are no addresses.

        Raises:
            DriverCallFailed: The capture is broken, or a node cannot be read.
        """
        nodes = (node for graph, start, stop in self._spans for node in self._of(graph)[start:stop])
        return operands.mentioned_by(self._work, nodes)

    def _of(self, graph: Any) -> list[Any]:
        return self._work.cu.nodes(graph, about=self._about)

    def _graph(self) -> Any:
        # The same object each time, by which it is known.
        return self._bodies[-1].graph if self._bodies else self._root

    def _count(self, graph: Any) -> int:
        count = self._number(graph)
        # Of a broken capture nothing is counted. Its end says what broke it.
        return self._known.get(id(graph), 0) if count is None else count


def _counts(work: Work) -> Callable[[Any], int | None]:
    """What counts the nodes of a graph, as cheaply as can be; it says None of a broken one."""
    number = bound(work, counter(), ("cuGraphGetNodes",))
    if number is None:
        read = work.cu.raw("cuGraphGetNodes")

        def asked(graph: Any) -> int | None:
            code, _, count = read(graph)
            return None if code else int(count)

        return asked
    # To ask an object for its number costs more than to count.
    handles: dict[int, tuple[Any, int]] = {}

    def counted(graph: Any) -> int | None:
        known = handles.get(id(graph))
        if known is None:
            known = handles[id(graph)] = graph, int(graph)
        count = number(known[1])
        return None if count < 0 else int(count)

    return counted
