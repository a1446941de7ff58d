"""Of ``annotate``: which nodes a scope names, and that it is nothing elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from tensorplay_core import annotate, clear_annotations, export_dot
from tensorplay_core import annotations as annotated
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench
from tensorplay_core.topology import Topology

pytestmark = pytest.mark.needs("graph_mark", "graph_topology")


@pytest.fixture(autouse=True)
def cleared() -> None:
    clear_annotations()


def scopes(topology: Topology) -> list[str]:
    """The annotation of each node, ``""`` without one; adjacent ones that are equal once."""
    found = [node.attributes.get("annotation", "") for node in topology.nodes]
    return [one for place, one in enumerate(found) if not place or found[place - 1] != one]


def test_a_node_carries_the_scope_that_it_was_captured_in(
    workbench: Workbench, facade: Facade
) -> None:
    total = workbench.buffer([0.0])

    def work() -> None:
        workbench.add_(total, 1.0)
        with annotate("outer"):
            workbench.add_(total, 2.0)
            with annotate("inner"):
                workbench.add_(total, 3.0)
            with annotate("nothing in it"):
                pass
            workbench.add_(total, 4.0)
        workbench.add_(total, 5.0)

    made = facade.record(work, enable_annotations=True)
    assert scopes(made.topology) == ["", "outer", "outer/inner", "outer", ""]
    assert "annotation: outer/inner" in export_dot(graph=made)
    assert {one.annotation for one in annotated()} == {"outer", "outer/inner"}
    places = [one.place for one in annotated()]
    assert places == sorted(places)
    for one in annotated():
        node = made.topology.nodes[int(one.place[0])]
        assert (node.name, node.kind) == (one.name, one.kind)
        assert node.attributes["annotation"] == one.annotation


def test_replays_are_what_they_are_without(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([1.0, 2.0])

    def work() -> None:
        with annotate("all"):
            workbench.add_(total, 1.0)

    made = facade.record(work, enable_annotations=True)
    for _ in range(2):
        made.replay()
    assert workbench.read(total) == [3.0, 4.0]


def test_without_asking_nothing_is_annotated(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    with annotate("outside any capture"):
        workbench.add_(total, 1.0)

    def work() -> None:
        with annotate("not asked for"):
            workbench.add_(total, 1.0)

    assert scopes(facade.record(work).topology) == [""]
    assert annotated() == ()


def test_a_scope_around_a_capture_holds_in_it(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    with annotate("around"):
        made = facade.record(lambda: workbench.add_(total, 1.0), enable_annotations=True)
    assert scopes(made.topology) == ["around"]


def test_annotations_accumulate_until_they_are_cleared(
    workbench: Workbench, facade: Facade
) -> None:
    total = workbench.buffer([0.0])

    @annotate("decorated")
    def work() -> None:
        workbench.add_(total, 1.0)

    first = facade.record(work, enable_annotations=True)
    one = len(annotated())
    assert one > 0
    second = facade.record(work, enable_annotations=True)
    assert len(annotated()) == 2 * one
    assert len({node.graph for node in annotated()}) == 2
    first.close()
    second.close()
    assert {node.annotation for node in annotated()} == {"decorated"}
    clear_annotations()
    assert annotated() == ()


def test_a_failed_capture_leaves_no_annotation(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])

    def work() -> None:
        with annotate("lost"):
            workbench.add_(total, 1.0)
            raise KeyError("the user's own")

    with pytest.raises(KeyError):
        facade.record(work, enable_annotations=True)
    assert annotated() == ()
    kept = facade.record(lambda: workbench.add_(total, 1.0), enable_annotations=True)
    assert scopes(kept.topology) == [""]


def test_a_capture_that_breaks_in_a_scope_says_what_broke_it(
    workbench: Workbench, facade: Facade
) -> None:
    total = workbench.buffer([0.0])

    def fail() -> None:
        workbench.add_(total, 1.0)
        workbench.fail()

    def scoped() -> None:
        with annotate("broken"):
            fail()

    with pytest.raises(Exception) as plain:
        facade.record(fail)
    with pytest.raises(Exception) as named:
        facade.record(scoped, enable_annotations=True)
    assert named.type is plain.type
    assert annotated() == ()


def test_forked_work_belongs_to_the_scope_that_is_open(
    workbench: Workbench, facade: Facade
) -> None:
    total, other = workbench.buffer([0.0]), workbench.buffer([0.0])

    def work() -> None:
        with annotate("both"):
            side = workbench.fork()
            with workbench.on(side):
                workbench.add_(other, 1.0)
            workbench.add_(total, 1.0)
            workbench.join(side)
        workbench.add_(total, 1.0)

    assert scopes(facade.record(work, enable_annotations=True).topology) == ["both", ""]


@pytest.mark.needs("conditional_open", "conditional_enter", "conditional_exit")
def test_bodies_have_scopes_of_their_own(workbench: Workbench, facade: Facade) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with facade.capture(made, enable_annotations=True), annotate("model"):
        workbench.add_(total, 1.0)
        with made.if_else(flag) as (then, other):
            with then, annotate("large"):
                workbench.add_(total, 2.0)
                with made.if_then(flag), annotate("deep"):
                    workbench.add_(total, 3.0)
            with other:
                workbench.add_(total, 4.0)
        with annotate("after"):
            workbench.add_(total, 5.0)
    found = [
        body.topology
        for node in made.topology.nodes
        if node.kind == "conditional"
        for body in node.bodies
        if body.topology.nodes
    ]
    # An if/else may be two nodes with a body each, whatever the driver calls these.
    large, small = found
    assert set(scopes(large)) - {"model"} == {"model/large"}
    (deep,) = [body.topology for node in large.nodes for body in node.bodies]
    assert "model/large/deep" in scopes(deep)
    assert set(scopes(small)) == {"model"}
    assert scopes(made.topology) == ["model", "model/after"]
    assert any(len(one.place) == 3 for one in annotated())
    made.replay()
    assert workbench.read(total) == [11.0]


@pytest.mark.needs("graph_update")
def test_an_updated_graph_has_the_scopes_of_the_new_capture(
    workbench: Workbench, facade: Facade
) -> None:
    total = workbench.buffer([0.0])

    def work(name: str) -> Any:
        def scoped() -> None:
            with annotate(name):
                workbench.add_(total, 1.0)

        return scoped

    made = facade.record(work("old"), enable_annotations=True)
    made.update(facade.record(work("new"), enable_annotations=True))
    assert scopes(made.topology) == ["new"]
    made.update(facade.record(work("none")))
    assert scopes(made.topology) == [""]
