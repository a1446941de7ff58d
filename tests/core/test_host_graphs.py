"""Graphs of the host: updated, nested, adopted, drawn."""

import weakref
from typing import Any

import pytest

from tensorplay_core.errors import (
    ArgumentTypeError,
    CaptureInvalidated,
    OperationRefused,
)
from tensorplay_core.protocols import ConditionalKind

from .host_work import nothing, recorder


def test_update_keeps_the_executable_where_the_topology_is_the_same(host: Any) -> None:
    old, first = recorder(host, "a", "b")
    new, second = recorder(host, "c", "d")
    executable = host.executable(first)
    launch = executable.launch
    operand = host.driver.event()
    first.template.retain(operand)
    kept = weakref.ref(operand)
    del operand
    update = host.runtime.graph_update(executable, second.template)
    assert (update.in_place, update.reason) == (True, "")
    launch()
    assert (old, new) == ([], ["c", "d"])
    first.template.close()
    assert kept() is None


def _capture_for_update(host: Any, variant: str) -> Any:
    driver, runtime = host.driver, host.runtime
    flag = driver.buffer([False], "?")
    with host.capture() as captured:
        driver.submit(nothing, name="work", kind="memcpy" if variant == "kind" else "kernel")
        if variant == "count":
            driver.submit(nothing, name="more")
        if variant == "edge":
            side = driver.stream()
            side.wait_stream(driver.current)
            with driver.using(side):
                driver.submit(nothing, name="work")
            driver.submit(nothing, name="beside")
            driver.current.wait_stream(side)
        else:
            driver.submit(nothing, name="work")
            driver.submit(nothing, name="after")
        kind = ConditionalKind.IF if variant == "conditional" else ConditionalKind.WHILE
        steps = {"conditional": None, "steps": 3}.get(variant, 2)
        (body,) = runtime.conditional_open(captured.capture, kind, flag, 1, max_steps=steps)
        with host.body(body):
            driver.submit(nothing, name="in", kind="memset" if variant == "body" else "kernel")
    return captured


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("count", "nodes"),
        ("kind", "node 0 of the graph is a kernel"),
        ("edge", "depends on"),
        ("conditional", "while of 1"),
        ("steps", "max_steps=2"),
        ("body", "node 0 of the body of node 3"),
    ],
)
def test_update_says_why_it_cannot(host: Any, variant: str, reason: str) -> None:
    first, same, other = (_capture_for_update(host, one) for one in ("", "", variant))
    executable = host.executable(first)
    assert host.runtime.graph_update(executable, same.template).in_place
    update = host.runtime.graph_update(executable, other.template)
    assert not update.in_place
    assert reason in update.reason
    executable.launch()
    executable.close()
    assert "closed" in host.runtime.graph_update(executable, same.template).reason


def test_a_launch_inside_a_capture_becomes_a_child_graph(host: Any) -> None:
    ran, inner = recorder(host, "a", "b")
    child = host.executable(inner)
    with host.capture() as outer:
        host.driver.launch(ran.append, "before")
        child.launch()
        host.driver.launch(ran.append, "after")
    assert ran == []
    topology = host.runtime.graph_topology(outer.template)
    assert [node.kind for node in topology.nodes] == ["kernel", "child", "kernel"]
    assert topology.edges == ((0, 1), (1, 2))
    assert topology.nodes[1].bodies[0].role == "child"
    assert topology.count("kernel") == 4
    executable = host.executable(outer)
    child.close()
    executable.launch()
    assert ran == ["before", "a", "b", "after"]


def test_a_launch_on_a_captured_stream_is_recorded_and_on_another_runs(host: Any) -> None:
    ran, inner = recorder(host, "a")
    child = host.executable(inner)
    with host.capture() as outer:
        captured = host.driver.current
        with host.driver.using(host.driver.stream()):
            child.launch()
            assert ran == ["a"]
            child.launch(captured)
        child.launch(0)
    assert ran == ["a", "a"]
    assert outer.template.node_count == 1


def test_a_child_with_conditionals_is_refused_as_cuda_does(host: Any) -> None:
    flag = host.driver.buffer([True], "?")
    with host.capture() as inner:
        host.runtime.conditional_open(inner.capture, ConditionalKind.IF, flag, 1)
    child = host.executable(inner)
    child.launch()
    capture = host.begin()
    with pytest.raises(OperationRefused, match="conditional nodes"):
        child.launch()
    with pytest.raises(CaptureInvalidated):
        host.runtime.graph_end(capture)


def test_a_callable_made_by_somebody_else_is_adopted(host: Any) -> None:
    class Owner:
        pass

    ran, captured = recorder(host, "a")
    owner = Owner()
    alive = weakref.ref(owner)
    template = captured.template
    executable = host.runtime.executable_adopt(template, lambda: ran.append("adopted"), owner)
    del owner
    executable.launch()
    assert ran == ["adopted"]
    assert alive() is not None
    assert "adopted" in host.runtime.graph_update(executable, template).reason
    executable.close()
    assert alive() is None
    with pytest.raises(ArgumentTypeError):
        host.runtime.executable_adopt(template, 3, None)


def test_topology_and_dot_show_names_edges_and_bodies(host: Any) -> None:
    driver, runtime = host.driver, host.runtime
    index = driver.buffer([0], "i")
    buffer, other = driver.buffer([1.0, 2.0]), driver.buffer([4.0, 5.0])

    def halve(values: Any) -> None:
        values.memory[0] /= 2

    with host.capture() as captured:
        driver.launch(halve, buffer)
        driver.memset(buffer, 3)
        driver.submit(nothing, name='say "hi"', kind="host", attributes={"path": "a\\b"})
        bodies = runtime.conditional_open(captured.capture, ConditionalKind.SWITCH, index, 3)
        with host.body(bodies[1]):
            driver.copy(buffer, other)
    topology = runtime.graph_topology(captured.template)
    kinds = [(node.kind, node.name) for node in topology.nodes]
    assert kinds == [
        ("kernel", "halve"),
        ("memset", "memset"),
        ("host", 'say "hi"'),
        ("conditional", "switch"),
    ]
    assert topology.nodes[1].attributes == {"bytes": 8, "value": 3}
    roles = [(body.role, len(body.topology.nodes)) for body in topology.nodes[3].bodies]
    assert roles == [("case 0", 0), ("case 1", 1), ("case 2", 0)]
    dot = runtime.graph_dot(captured.template, True)
    assert dot == runtime.graph_dot(captured.template, True)
    assert 'say \\"hi\\"' in dot
    assert "a\\\\b" in dot
    assert "bytes: 8" in dot
    assert "bytes" not in runtime.graph_dot(captured.template, False)
    assert dot.count("subgraph") == 3
