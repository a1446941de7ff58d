"""What ``annotate`` accepts, how scopes behave beside threads and tasks, and what pictures show."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from tensorplay_core import (
    annotate,
    annotations,
    clear_annotations,
    graph,
    pictures,
    scopes,
    select,
)
from tensorplay_core.errors import ArgumentError, ArgumentTypeError, UnsupportedByDriver
from tensorplay_core.recording import CaptureMethods
from tensorplay_core.timeline import Timeline, timelines_here
from tensorplay_core.topology import Node, Topology

from .host_work import HostGraph


@pytest.fixture(autouse=True)
def cleared():
    clear_annotations()
    yield
    clear_annotations()


@pytest.fixture
def host():
    return select("host").driver


@pytest.fixture
def work(host):
    return lambda name="work": host.submit(lambda: None, name=name)


def captured(function):
    made = HostGraph()
    with graph(made, enable_annotations=True):
        function()
    return [node.attributes.get("annotation") for node in made.topology.nodes]


@pytest.mark.parametrize("name", [None, 3, b"bytes", {"phase": "forward"}])
def test_a_name_that_is_no_string_is_refused(name):
    with pytest.raises(ArgumentTypeError, match="string"):
        annotate(name)


def test_an_empty_name_is_refused():
    with pytest.raises(ArgumentError, match="empty"):
        annotate("")


async def coroutine():
    pass


def generator():
    yield


async def asynchronous_generator():
    yield


@pytest.mark.parametrize("function", [coroutine, generator, asynchronous_generator])
def test_a_function_whose_body_runs_later_is_refused(function):
    with pytest.raises(ArgumentTypeError, match="runs after the call"):
        annotate("late")(function)


def test_one_object_serves_nested_and_repeated_entries(work):
    scope = annotate("again")

    def nested():
        with scope, scope:
            work()
        with scope:
            work()

    assert captured(nested) == ["again/again", "again"]


def test_a_decorated_function_keeps_its_name_and_its_result(work):
    @annotate("decorated")
    def named(value):
        """Documented."""
        work()
        return value

    assert (named.__name__, named.__doc__, named(3)) == ("named", "Documented.", 3)
    assert captured(lambda: named(1)) == ["decorated"]


def test_an_exception_closes_the_scopes_that_it_leaves(work):
    def swallowing():
        with annotate("outer"):
            with pytest.raises(KeyError), annotate("inner"):
                raise KeyError
            work()
        work()

    assert captured(swallowing) == ["outer", None]
    assert scopes.current_scope() == ""


def test_scopes_of_another_thread_are_not_those_of_the_capture(work):
    def other_thread():
        def run():
            with annotate("theirs"):
                ready.set()
                done.wait()

        ready, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=run)
        with annotate("ours"):
            thread.start()
            ready.wait()
            work()
        done.set()
        thread.join()

    assert captured(other_thread) == ["ours"]


def test_scopes_of_tasks_do_not_mix(work):
    async def scoped(name, entered, go):
        with annotate(name):
            entered.set()
            await go.wait()
            return scopes.current_scope()

    async def both():
        first, second, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
        tasks = [
            asyncio.create_task(scoped("one", first, go)),
            asyncio.create_task(scoped("two", second, go)),
        ]
        await first.wait()
        await second.wait()
        go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(both()) == ["one", "two"]


def test_no_timeline_is_left_behind(work):
    captured(work)
    with pytest.raises(KeyError):
        captured(lambda: {}["missing"])
    assert timelines_here() == ()


def test_a_tree_shows_the_annotation_and_a_picture_no_number_that_changes():
    shape = Topology(
        nodes=(
            Node(
                index=0,
                kind="kernel",
                name="add",
                attributes={"annotation": "encoder", "tools_id": 77},
            ),
        )
    )
    assert "0 kernel: add  [encoder]" in pictures.to_tree(shape)
    dot = pictures.to_dot(shape)
    assert "annotation: encoder" in dot
    assert "77" not in dot
    assert pictures.to_networkx(shape).nodes[0,]["annotation"] == "encoder"


def test_numbers_of_profilers_are_those_of_the_executable():
    nodes = [
        Node(index=0, kind="kernel", name="a", attributes={"tools_id": 5 << 32 | 9}),
        Node(index=1, kind="kernel", name="b"),
    ]
    timeline = Timeline(lambda _: 0, "all")
    timeline.begin(SimpleNamespace())
    timeline.end()
    shape = timeline.applied(Topology(nodes=tuple(nodes)))
    scopes.record(1, shape, 12)
    scopes.record(2, shape, 0)
    assert [one.tools_id for one in annotations()] == [12 << 32 | 9, None, None, None]


def test_a_driver_places_work_where_it_belongs():
    count = [0]
    timeline = Timeline(lambda _: count[0], "")
    timeline.begin(SimpleNamespace())
    seen = []
    timeline.follow(seen.append)
    timeline.change("forward")
    count[0] = 2
    timeline.change("backward")
    count[0] = 3
    timeline.place("forward", phase="backward")
    count[0] = 4
    timeline.resume()
    count[0] = 5
    timeline.end()
    shape = timeline.applied(
        Topology(nodes=tuple(Node(index=i, kind="kernel", name="k") for i in range(5)))
    )
    assert [node.attributes for node in shape.nodes] == [
        {"annotation": "forward"},
        {"annotation": "forward"},
        {"annotation": "backward"},
        {"annotation": "forward", "phase": "backward"},
        {"annotation": "backward"},
    ]
    assert seen == ["forward", "backward"]


def test_nodes_that_cannot_be_counted_fail_the_capture_by_that_name(work, monkeypatch):
    refused = UnsupportedByDriver(driver="host", hook="graph_mark", doing="counting", remedy="-")

    def broken(*_):
        raise refused

    monkeypatch.setattr(type(select("host")), "graph_mark", broken)
    with pytest.raises(UnsupportedByDriver):
        captured(lambda: (work(), annotate("a").__enter__().__exit__(None, None, None)))
    assert annotations() == ()


def test_a_driver_that_cannot_count_refuses_annotations(monkeypatch):
    runtime = select("host")
    can = type(runtime).can
    monkeypatch.setattr(
        type(runtime), "can", lambda self, hook: hook != "graph_mark" and can(self, hook)
    )
    made = HostGraph()
    with (
        pytest.raises(UnsupportedByDriver, match="graph_mark"),
        graph(made, enable_annotations=True),
    ):
        pass
    assert isinstance(made, CaptureMethods)
    assert "empty" in repr(made)
