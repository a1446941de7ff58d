"""``annotate``: names for parts of captured work, carried by the nodes that it became."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from tensorplay_core.signature import a_type

from .errors import ArgumentError, ArgumentTypeError
from .timeline import timelines_here
from .topology import Topology

__all__ = ["AnnotatedNode", "annotate", "annotations", "clear_annotations", "current_scope"]

Called = TypeVar("Called", bound=Callable[..., Any])

_path: ContextVar[tuple[str, ...]] = ContextVar("tensorplay_annotations", default=())
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedNode:
    """One node that was captured inside a scope.

    Attributes:
        annotation: The names of the scopes, joined by ``/``, the innermost last.
        name: Kernel or operation name, by which profilers know it too.
        kind: As in ``Node``.
        graph: Serial number of the graph, as its ``repr`` shows it.
        place: Its index in the graph; inside bodies the path of indices and roles that leads there.
        phase: ``"backward"`` for work of a backward pass, where the driver knows it; else ``""``.
        tools_id: The number by which CUPTI and profilers know the node of the executable graph,
            where the CUDA driver tells it (13.1 and later); None elsewhere and inside bodies.
    """

    annotation: str
    name: str
    kind: str
    graph: int
    place: tuple[int | str, ...]
    phase: str = ""
    tools_id: int | None = None


_recorded: list[AnnotatedNode] = []


class annotate(ContextDecorator):
    """Names the work captured while it is entered; of a function it decorates, while that runs.

    ::

        with graph(g, enable_annotations=True):
            with annotate("encoder"):
                y = encoder(x)
        g.topology.nodes[0].attributes["annotation"]    # "encoder"

    Scopes nest: their names are joined by ``/``. It does nothing outside a capture, nor in one
    without ``enable_annotations``. The scopes of the thread that captures count: what another
    thread adds to its capture meanwhile belongs to the scope that is open then.

    Args:
        name: Of the scope, not empty.

    Raises:
        ArgumentTypeError: ``name`` is no string, or what is decorated is a generator or coroutine
            function, whose body runs after the call.
        ArgumentError: ``name`` is empty.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(
                doing="annotating",
                subject=f"a scope called {name!r}",
                met=f"the name is {a_type(name)}",
                remedy='Pass a string: with annotate("encoder"): ... or @annotate("encoder").',
            )
        if not name:
            raise ArgumentError(
                doing="annotating", subject="a scope", met="its name is empty", remedy="Name it."
            )
        self.name = name
        self._outer: list[tuple[str, ...]] = []

    def __repr__(self) -> str:
        return f"annotate({self.name!r})"

    def __call__(self, function: Called) -> Called:
        """The function, each call of which is a scope."""
        late = (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
        if any(runs_later(function) for runs_later in late):
            raise ArgumentTypeError(
                doing="annotating",
                subject=f"function {getattr(function, '__qualname__', function)}",
                met="its body runs after the call, when the scope is over",
                remedy=f"Open the scope inside it: with annotate({self.name!r}): ...",
            )
        return super().__call__(function)

    def _recreate_cm(self) -> "annotate":
        # Threads may call one decorated function at once.
        return annotate(self.name)

    def __enter__(self) -> "annotate":
        outer = _path.get()
        self._outer.append(outer)
        _switch((*outer, self.name))
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _switch(self._outer.pop())


def current_scope() -> str:
    """The scope that is open here, ``""`` if none is."""
    return "/".join(_path.get())


def _switch(path: tuple[str, ...]) -> None:
    _path.set(path)
    for timeline in timelines_here():
        timeline.change("/".join(path))


def annotations() -> tuple[AnnotatedNode, ...]:
    """The annotated nodes of all graphs captured since the last ``clear_annotations``, in order.

    They stay when the graphs are gone.
    """
    with _lock:
        return tuple(_recorded)


def clear_annotations() -> None:
    """Forgets what ``annotations`` returns. What graphs show of themselves stays."""
    with _lock:
        _recorded.clear()


def record(graph: int, topology: Topology, executable: int) -> None:
    """Adds the annotated nodes of a graph to ``annotations()``.

    Args:
        graph: Its serial number.
        topology: With annotations.
        executable: The number by which profilers know its executable; 0 if none does.
    """
    found = list(_listed(graph, topology, executable, ()))
    with _lock:
        _recorded.extend(found)


def _listed(
    graph: int, topology: Topology, executable: int, path: tuple[int | str, ...]
) -> Iterator[AnnotatedNode]:
    for node in topology.nodes:
        here, facts = (*path, node.index), node.attributes
        if "annotation" in facts:
            known = executable and not path and "tools_id" in facts
            yield AnnotatedNode(
                annotation=facts["annotation"],
                name=node.name,
                kind=node.kind,
                graph=graph,
                place=here,
                phase=facts.get("phase", ""),
                # What runs is the executable's copy of the node, under the same lower half.
                tools_id=executable << 32 | facts["tools_id"] & 0xFFFFFFFF if known else None,
            )
        for body in node.bodies:
            yield from _listed(graph, body.topology, executable, (*here, body.role))
