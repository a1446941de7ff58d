"""Of what a graph tells of itself: topology, pictures, words."""

from __future__ import annotations

import gc
import pathlib

import pytest

from tensorplay_core import export_dot
from tensorplay_core.errors import ArgumentTypeError, GraphStateError
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import four_parts


@pytest.mark.needs("graph_topology")
def test_the_topology_has_every_node_and_edge(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])

    def work() -> None:
        workbench.add_(total, 1.0)
        side = workbench.fork()
        with workbench.on(side):
            workbench.add_(total, 2.0)
        workbench.join(side)
        workbench.add_(total, 3.0)

    shape = facade.record(work).topology
    assert shape.count() >= 3
    assert [node.index for node in shape.nodes] == list(range(len(shape.nodes)))
    assert all(node.name and node.kind for node in shape.nodes)
    assert all(0 <= one < len(shape.nodes) for edge in shape.edges for one in edge)
    assert len(shape.edges) >= 2


@pytest.mark.needs("graph_topology")
def test_the_last_captured_graph_is_exported(
    workbench: Workbench, facade: Facade, tmp_path: pathlib.Path
) -> None:
    total, path = workbench.buffer([0.0]), tmp_path / "graph.dot"
    made = facade.record(lambda: workbench.add_(total, 1.0))
    text = export_dot(str(path))
    assert text == export_dot(graph=made) == path.read_text(encoding="utf-8")
    assert text.startswith("digraph")
    assert export_dot(graph=made, verbose=False).startswith("digraph")
    del made
    gc.collect()
    with pytest.raises(GraphStateError) as caught:
        export_dot()
    four_parts(caught.value)


@pytest.mark.needs("graph_topology")
def test_what_is_no_graph_is_not_exported(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, 1.0))
    with pytest.raises(ArgumentTypeError) as caught:
        export_dot(graph=5)  # type: ignore[arg-type]
    four_parts(caught.value)
    assert "int" in caught.value.met
    del made


@pytest.mark.needs("graph_dot")
def test_a_debug_dump_is_dot_text(
    workbench: Workbench, facade: Facade, tmp_path: pathlib.Path
) -> None:
    total, path, made = workbench.buffer([0.0]), tmp_path / "graph.dot", facade.new()
    made.enable_debug_mode()
    with facade.capture(made):
        workbench.add_(total, 1.0)
    made.debug_dump(str(path))
    assert "digraph" in path.read_text(encoding="utf-8")


def test_a_graph_says_what_it_is_in_every_state(workbench: Workbench, facade: Facade) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    told = [repr(made)]
    with facade.capture(made):
        workbench.add_(total, 1.0)
        told.append(repr(made))
    told.append(repr(made))
    made.close()
    told.append(repr(made))
    assert len(set(told)) == 4
    assert all(facade.driver in one for one in told)
