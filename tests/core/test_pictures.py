"""Pictures of a topology say all of it and break at none of its names."""

from __future__ import annotations

import re

import networkx
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_core import Node, Topology
from tensorplay_core.pictures import to_dot, to_networkx, to_tree
from tensorplay_core.topology import Body

names = st.text(min_size=1, max_size=12)


def topologies(depth: int = 2) -> st.SearchStrategy[Topology]:
    bodies = (
        st.lists(topologies(depth - 1), max_size=2).map(
            lambda inner: tuple(Body(role=f"case {i}", topology=t) for i, t in enumerate(inner))
        )
        if depth
        else st.just(())
    )

    @st.composite
    def draw(draw_one: st.DrawFn) -> Topology:
        count = draw_one(st.integers(0, 4))
        nodes = tuple(
            Node(
                index=i,
                kind=draw_one(st.sampled_from(["kernel", "memcpy", "conditional"])),
                name=draw_one(names),
                attributes={"bytes": draw_one(st.integers(0, 9)), "note": draw_one(names)},
                bodies=draw_one(bodies),
            )
            for i in range(count)
        )
        edges = tuple((i, i + 1) for i in range(count - 1))
        return Topology(nodes=nodes, edges=edges, label=draw_one(names))

    return draw()


@given(topologies())
def test_dot_has_one_line_a_statement_whatever_the_names(topology: Topology) -> None:
    drawn = [
        re.sub(r'"(?:[^"\\]|\\.)*"', '""', line) for line in to_dot(topology).split("\n") if line
    ]
    assert drawn[0] == 'digraph "" {'
    assert drawn[-1] == "}"
    assert all(line.rstrip().endswith((";", "{", "}")) for line in drawn)
    assert sum("shape=" in line and "plaintext" not in line for line in drawn) == topology.count()


@given(topologies())
def test_networkx_has_every_node_and_the_edges_of_each_level(topology: Topology) -> None:
    graph = to_networkx(topology)
    assert graph.number_of_nodes() == topology.count()
    assert {(a, b) for (a,), (b,) in (e for e in graph.edges if len(e[0]) == 1)} == set(
        topology.edges
    )
    assert networkx.is_directed_acyclic_graph(graph)


def test_a_tree_shows_bodies_under_their_node() -> None:
    body = Topology(nodes=(Node(index=0, kind="kernel", name="add"),))
    topology = Topology(
        nodes=(
            Node(index=0, kind="kernel", name="less"),
            Node(
                index=1,
                kind="conditional",
                name="while",
                bodies=(Body(role="body", topology=body),),
            ),
        ),
        edges=((0, 1),),
    )
    assert to_tree(topology).split("\n") == [
        "graph",
        "  0 kernel: less",
        "  1 conditional: while  <- 0",
        "    body:",
        "      0 kernel: add",
    ]
    assert topology.count("kernel") == 2
    assert topology.kinds() == {"kernel": 2, "conditional": 1}
