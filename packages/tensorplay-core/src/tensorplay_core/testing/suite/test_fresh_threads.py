"""Of threads that never used the device: whatever is done with a graph first, is done there.

A native driver keeps state for each thread, and a call before that state is there may fail or end
the process. So each test does one thing in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core import CUDAGraph, export_dot
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import captures_again


def fresh(work: Callable[[], Any]) -> Any:
    """What ``work`` returns or raises in a thread that nothing else ran in."""
    found: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((result, error),) = found
    if error is not None:
        raise error
    return result


class Adding:
    """A graph that adds its input to a total, and was replayed once, of a total that is 0 since."""

    def __init__(self, workbench: Workbench, facade: Facade) -> None:
        self.bench = workbench
        self.x, self.total = workbench.buffer([1.0]), workbench.buffer([0.0])
        self.facade = facade
        self.made = self.captured()
        self.made.replay()
        workbench.write(self.total, [0.0])
        self.stream = workbench.stream()

    def captured(self, *, keep_graph: bool = False) -> CUDAGraph:
        """The same work in another graph."""
        made = self.facade.new(keep_graph=keep_graph)
        with self.facade.capture(made):
            self.bench.add_(self.total, self.x)
        return made

    def added(self) -> list[float]:
        """What the total is, once all work is done."""
        self.bench.synchronize()
        return self.bench.read(self.total)


@pytest.fixture
def adding(workbench: Workbench, facade: Facade) -> Adding:
    """See ``Adding``."""
    return Adding(workbench, facade)


@pytest.mark.parametrize("where", ["current", "named", "made current"])
def test_a_fresh_thread_replays(adding: Adding, where: str) -> None:
    def work() -> None:
        if where == "made current":
            with adding.bench.on(adding.stream):
                adding.made.replay()
        elif where == "named":
            adding.made.replay(adding.stream)
        else:
            adding.made.replay()

    fresh(work)
    assert adding.added() == [1.0]


@pytest.mark.needs("stage")
@pytest.mark.parametrize("where", ["current", "named", "made current"])
@pytest.mark.parametrize("form", ["plan", "plan with results", "stage_and_launch"])
def test_a_fresh_thread_stages(adding: Adding, where: str, form: str) -> None:
    given = adding.bench.buffer([5.0])
    results = [adding.total] if form == "plan with results" else []
    plan = adding.made.stage([adding.x], results)

    def launch(*, stream: Any = None) -> Any:
        if form == "stage_and_launch":
            return adding.made.stage_and_launch([adding.x], [given], stream=stream)
        return plan([given]) if stream is None else plan([given], stream=stream)

    def work() -> Any:
        if where == "made current":
            with adding.bench.on(adding.stream):
                return launch()
        return launch(stream=adding.stream if where == "named" else None)

    # Of a plan the first call goes another way than the later ones.
    for step in (1, 2, 3):
        made = fresh(work)
        adding.bench.synchronize()
        if results:
            assert adding.bench.read(made[0]) == [5.0 * step]
    assert adding.added() == [15.0]


@pytest.mark.needs("stage")
def test_a_plan_is_made_in_a_fresh_thread(adding: Adding) -> None:
    plan = fresh(lambda: adding.made.stage([adding.x], [adding.total]))
    (result,) = plan([adding.bench.buffer([7.0])])
    assert adding.bench.read(result) == [7.0]


def test_a_fresh_thread_instantiates(adding: Adding) -> None:
    kept = adding.captured(keep_graph=True)
    fresh(kept.instantiate)
    kept.replay()
    assert adding.added() == [1.0]


@pytest.mark.parametrize("named", [False, True], ids=["current", "named"])
def test_a_fresh_thread_uploads(adding: Adding, named: bool) -> None:
    fresh(lambda: adding.made.upload(adding.stream) if named else adding.made.upload())
    adding.made.replay()
    assert adding.added() == [1.0]


def test_a_fresh_thread_updates(adding: Adding) -> None:
    other = adding.captured()
    fresh(lambda: adding.made.update(other))
    adding.made.replay()
    assert adding.added() == [1.0]


@pytest.mark.needs("graph_topology")
def test_a_fresh_thread_looks_at_a_graph(adding: Adding) -> None:
    there = export_dot(graph=adding.made), repr(adding.made), adding.made.topology
    found = fresh(lambda: (export_dot(graph=adding.made), repr(adding.made), adding.made.topology))
    assert found == there


@pytest.mark.needs("graph_dot")
def test_a_fresh_thread_dumps_a_graph(workbench: Workbench, facade: Facade, tmp_path: Any) -> None:
    total, made, path = workbench.buffer([0.0]), facade.new(), tmp_path / "graph.dot"
    made.enable_debug_mode()
    with facade.capture(made):
        workbench.add_(total, 1.0)
    fresh(lambda: made.debug_dump(str(path)))
    assert "digraph" in path.read_text(encoding="utf-8")


@pytest.mark.needs("pool_statistics")
def test_a_fresh_thread_asks_for_the_pool(adding: Adding) -> None:
    assert fresh(lambda: adding.made.memory) == adding.made.memory


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("staged", [False, True], ids=["plain", "staged"])
def test_a_fresh_thread_ends_a_graph(
    adding: Adding, facade: Facade, how: str, staged: bool
) -> None:
    if staged and facade.bench.runtime.can("stage"):
        adding.made.stage([adding.x])([adding.bench.buffer([1.0])])
    fresh(getattr(adding.made, how))
    captures_again(facade)


def test_a_fresh_thread_captures(adding: Adding) -> None:
    made = fresh(adding.captured)
    fresh(made.replay)
    assert adding.added() == [1.0]


@pytest.mark.needs("conditional_open")
def test_a_fresh_thread_captures_and_replays_a_body(workbench: Workbench, facade: Facade) -> None:
    flag, total, made = workbench.flag(True), workbench.buffer([0.0]), facade.new()

    def capture() -> None:
        with facade.capture(made), made.if_then(flag):
            workbench.add_(total, 1.0)

    fresh(capture)
    stream = workbench.stream()
    fresh(lambda: made.replay(stream))
    workbench.synchronize()
    assert workbench.read(total) == [1.0]
