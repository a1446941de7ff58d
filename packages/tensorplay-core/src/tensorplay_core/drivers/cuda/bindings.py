"""``cuda.bindings.driver`` under one spelling for its 12.x and 13.x lines, every result checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .failures import failure

__all__ = ["Calls", "CaptureInfo", "newest"]

# The 13.x line calls by the plain name what the 12.x line has under a suffix, beside an older form
# without edge data that fails on graphs with programmatic edges.
_SUFFIXES = {
    "cuStreamGetCaptureInfo": "_v3",
    "cuStreamUpdateCaptureDependencies": "_v2",
    "cuGraphAddNode": "_v2",
    "cuGraphAddDependencies": "_v2",
    "cuGraphGetEdges": "_v2",
}


def newest(driver: Any, name: str) -> Callable[..., Any]:
    """The form of a call that takes and gives edge data, whichever name the bindings have for it.

    Raises:
        AttributeError: The bindings do not have the call.
    """
    suffixed = getattr(driver, name + _SUFFIXES[name], None) if name in _SUFFIXES else None
    found: Callable[..., Any] = suffixed or getattr(driver, name)
    return found


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What a stream tells of its capture. All but ``status`` is empty unless it is capturing.

    Attributes:
        status: 0 none, 1 active, 2 invalidated.
        id: Unique in the process.
        graph: The graph that work goes into.
        frontier: The nodes that the next work on the stream depends on.
        edges: Edge data, one of each node of ``frontier``.
    """

    status: int
    id: int = 0
    graph: Any = None
    frontier: tuple[Any, ...] = ()
    edges: tuple[Any, ...] = ()


class Calls:
    """Native calls as methods that return the results alone, and raise what failed.

    A keyword ``about`` names the thing concerned, for the error. ``raw`` gives the bare call.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raw = newest(self.driver, name)

        def checked(*arguments: Any, about: str = "the CUDA driver") -> Any:
            code, *results = raw(*arguments)
            if code:
                raise failure(self.driver, name, int(code), about=about)
            return results[0] if len(results) == 1 else tuple(results) or None

        self.__dict__[name] = checked
        return checked

    def raw(self, name: str) -> Callable[..., Any]:
        """The unchecked call."""
        return newest(self.driver, name)

    def has(self, name: str) -> bool:
        """True if the bindings have the call (the installed driver may still lack it)."""
        return hasattr(self.driver, name)

    def capture_info(self, stream: Any, *, about: str = "the CUDA driver") -> CaptureInfo:
        """The capture of a stream other than the legacy one.

        Raises:
            DriverCallFailed: The handle is no stream.
        """
        status, serial, graph, nodes, edges, count = self.cuStreamGetCaptureInfo(
            stream, about=about
        )
        if not status:
            return CaptureInfo(0)
        frontier = tuple(nodes or ())[:count]
        return CaptureInfo(
            int(status), int(serial or 0), graph, frontier, tuple(self.edge_data(edges, count))
        )

    def edge_data(self, edges: Sequence[Any] | None, count: int) -> list[Any]:
        """``count`` edge data: those given, or plain ones. Some bindings refuse None for plain."""
        given = list(edges or ())[:count]
        return given or [self.driver.CUgraphEdgeData() for _ in range(count)]

    def count_nodes(self, graph: Any, *, about: str = "the CUDA driver") -> int:
        """How many nodes a graph has."""
        return int(self.cuGraphGetNodes(graph, about=about)[1])

    def nodes(self, graph: Any, *, about: str = "the CUDA driver") -> list[Any]:
        """The nodes of a graph, in the order of their creation."""
        _, count = self.cuGraphGetNodes(graph, about=about)
        found, count = self.cuGraphGetNodes(graph, count, about=about)
        return list(found or ())[:count]

    def edges(self, graph: Any, *, about: str = "the CUDA driver") -> list[tuple[Any, Any]]:
        """The edges of a graph as ``(before, after)`` nodes."""
        *_, count = self.cuGraphGetEdges(graph, about=about)
        before, after, _, count = self.cuGraphGetEdges(graph, count, about=about)
        return list(zip(list(before or ())[:count], list(after or ())[:count], strict=True))
