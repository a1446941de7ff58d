"""Pictures of a topology: DOT text, SVG, a tree for the terminal, a networkx graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .topology import Node, Topology

if TYPE_CHECKING:
    import networkx

__all__ = ["to_dot", "to_networkx", "to_svg", "to_tree"]

SHAPES = {"kernel": "box", "memcpy": "cds", "memset": "cds", "conditional": "diamond"}


def to_dot(topology: Topology, *, verbose: bool = True) -> str:
    """DOT text: nodes labelled with their names, edges, each body as a cluster under its node.

    Args:
        topology: What to draw.
        verbose: Put the attributes of a node under its name.
    """
    lines = [f"digraph {_quoted(topology.label)} {{", "  compound=true;"]
    lines += _drawn(topology, "n", verbose, "  ")
    return "\n".join([*lines, "}"]) + "\n"


def _drawn(topology: Topology, prefix: str, verbose: bool, indent: str) -> Iterator[str]:
    for node in topology.nodes:
        name = f"{prefix}{node.index}"
        label = _quoted("\n".join(_words(node, verbose)))
        yield f"{indent}{name} [label={label}, shape={SHAPES.get(node.kind, 'ellipse')}];"
        for number, body in enumerate(node.bodies):
            inner = f"{name}_{number}_"
            yield f"{indent}subgraph cluster_{inner} {{"
            yield f"{indent}  label={_quoted(body.role)};"
            # A cluster without a node is not drawn, and an edge needs a node to point to.
            yield f"{indent}  {inner}in [label={_quoted(body.role)}, shape=plaintext];"
            yield from _drawn(body.topology, inner, verbose, indent + "  ")
            yield f"{indent}}}"
            yield f"{indent}{name} -> {inner}in [style=dashed, lhead=cluster_{inner}];"
    for before, after in topology.edges:
        yield f"{indent}{prefix}{before} -> {prefix}{after};"


def _words(node: Node, verbose: bool) -> list[str]:
    title = node.name if node.name == node.kind else f"{node.kind}: {node.name}"
    if not verbose:
        return [title]
    # A number that is another at each capture is of no use in a picture.
    facts = (pair for pair in node.attributes.items() if pair[0] != "tools_id")
    return [title, *(f"{key}: {value}" for key, value in facts)]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def to_svg(topology: Topology, *, verbose: bool = False) -> str:
    """SVG text, laid out by graphviz.

    Raises:
        ImportError: The ``graphviz`` package is not installed (extra ``viz``).
        graphviz.ExecutableNotFound: Its program ``dot`` is not installed.
    """
    import graphviz

    drawn = graphviz.Source(to_dot(topology, verbose=verbose)).pipe(format="svg", encoding="utf-8")
    return str(drawn)


def to_tree(topology: Topology) -> str:
    """Text for a terminal: a node a line, with its annotation and predecessors; bodies indented."""
    return "\n".join([topology.label, *_branches(topology, "  ")])


def _branches(topology: Topology, indent: str) -> Iterator[str]:
    before: dict[int, list[int]] = {}
    for source, target in topology.edges:
        before.setdefault(target, []).append(source)
    for node in topology.nodes:
        after = ", ".join(map(str, sorted(before.get(node.index, []))))
        scope = node.attributes.get("annotation")
        line = f"{indent}{node.index} {_words(node, False)[0]}"
        yield line + (f"  [{scope}]" if scope else "") + (f"  <- {after}" if after else "")
        for body in node.bodies:
            yield f"{indent}  {body.role}:"
            yield from _branches(body.topology, indent + "    ")


def to_networkx(topology: Topology) -> networkx.DiGraph[tuple[Any, ...]]:
    """A ``networkx.DiGraph``; a node of a body is named by the path of indices that leads to it.

    Raises:
        ImportError: The ``networkx`` package is not installed (extra ``viz``).
    """
    import networkx

    drawn: networkx.DiGraph[tuple[Any, ...]] = networkx.DiGraph(label=topology.label)

    def add(level: Topology, path: tuple[Any, ...]) -> None:
        for node in level.nodes:
            here = (*path, node.index)
            drawn.add_node(here, kind=node.kind, name=node.name, **node.attributes)
            for body in node.bodies:
                add(body.topology, (*here, body.role))
        drawn.add_edges_from(((*path, a), (*path, b)) for a, b in level.edges)

    add(topology, ())
    return drawn
