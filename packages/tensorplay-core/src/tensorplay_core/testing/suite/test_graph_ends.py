"""Of a graph's life: states, ends in any order, what it owns, the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core import close_all, registry
from tensorplay_core.errors import GraphStateError, StaleGraph
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.oracle import churn
from tensorplay_core.testing.workbench import Workbench

from .checks import captures_again, four_parts, unchanged

pytestmark = pytest.mark.usefixtures("frozen_heap")


class _Owned:
    """Something that can be seen to die."""


# states


def test_a_graph_that_nobody_keeps_replays_once(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    facade.record(lambda: workbench.add_(total, 1.0)).replay()
    assert workbench.read(total) == [1.0]


def test_a_replay_that_was_kept_outlives_its_graph(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    before = workbench.live_bytes()
    replay = facade.record(lambda: workbench.add_(workbench.double(total), 1.0)).replay
    churn(workbench)
    for _ in range(3):
        replay()
    workbench.synchronize()
    del replay
    assert workbench.live_bytes() == before


def test_a_graph_may_capture_again_after_a_reset(workbench: Workbench, facade: Facade) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    for step in (1.0, 10.0, 100.0):
        with facade.capture(made):
            workbench.add_(total, step)
        made.replay()
        made.reset()
        made.reset()
    assert workbench.read(total) == [111.0]


def test_a_closed_graph_is_closed_for_good(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, 1.0))
    made.close()
    made.close()
    made.reset()
    for use in (made.replay, made.capture_begin, made.instantiate, made.upload):
        with unchanged(facade), pytest.raises(GraphStateError) as caught:
            use()
        four_parts(caught.value)
    assert workbench.read(total) == [0.0]


@pytest.mark.parametrize(
    ("use", "doing"),
    [
        (lambda made, array: made.replay(), "replaying"),
        (lambda made, array: made.upload(), "uploading"),
        (lambda made, array: made.instantiate(), "instantiating"),
        (lambda made, array: made.stage([array]), "staging"),
        (lambda made, array: made.stage_and_launch([array], [array]), "staging"),
    ],
    ids=["replay", "upload", "instantiate", "stage", "stage_and_launch"],
)
def test_an_empty_graph_says_what_it_was_asked(
    workbench: Workbench, facade: Facade, use: Callable[[Any, Any], None], doing: str
) -> None:
    made = facade.new()
    with unchanged(facade), pytest.raises(GraphStateError, match=doing) as caught:
        use(made, workbench.buffer([0.0]))
    four_parts(caught.value)
    assert "empty" in caught.value.met


def test_a_replay_that_was_looked_up_before_the_end_is_refused(
    workbench: Workbench, facade: Facade
) -> None:
    total = workbench.buffer([0.0])
    for end in ("close", "reset"):
        made = facade.record(lambda: workbench.add_(total, 1.0))
        launch = made.replay
        getattr(made, end)()
        with unchanged(facade), pytest.raises(GraphStateError) as caught:
            launch()
        four_parts(caught.value)
    assert workbench.read(total) == [0.0]


def test_ends_come_in_any_order(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    pool = facade.pool()
    three = [facade.record(lambda: workbench.add_(total, 1.0), pool) for _ in range(3)]
    three[1].close()
    three[0].replay()
    three[2].replay()
    three[0].reset()
    three[2].replay()
    three[2].close()
    assert workbench.read(total) == [3.0]


def test_a_graph_is_closed_from_another_thread(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, 1.0))
    made.replay()
    other = threading.Thread(target=made.close)
    other.start()
    other.join()
    with pytest.raises(GraphStateError):
        made.replay()
    assert workbench.read(total) == [1.0]


def test_a_graph_may_end_during_the_capture_of_another(
    workbench: Workbench, facade: Facade
) -> None:
    total, captured = workbench.buffer([0.0]), facade.new()
    closed = facade.record(lambda: workbench.add_(total, 1.0))
    dropped: list[Any] = [facade.record(lambda: workbench.double(total)) for _ in range(2)]
    cycle: list[Any] = [dropped.pop()]
    cycle.append(cycle)
    with facade.capture(captured):
        workbench.add_(total, 10.0)
        closed.close()
        dropped.clear()
        del cycle
        gc.collect()
        workbench.add_(total, 100.0)
    captured.replay()
    assert workbench.read(total) == [110.0]
    captures_again(facade)


def test_close_all_closes_every_graph(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    made = [facade.record(lambda: workbench.add_(total, 1.0)) for _ in range(3)]
    close_all()
    close_all()
    for one in made:
        with pytest.raises(GraphStateError):
            one.replay()
    captures_again(facade)


def test_capturing_again_and_again_costs_nothing_that_stays(
    workbench: Workbench, facade: Facade
) -> None:
    x, made = workbench.buffer([1.0] * 16), facade.new()
    before, graphs = workbench.live_bytes(), len(registry.live())
    for _ in range(20):
        with facade.capture(made):
            result = workbench.double(x)
        made.replay()
        made.reset()
        del result
        workbench.synchronize()
    assert workbench.live_bytes() == before
    assert len(registry.live()) == graphs


_AT_EXIT = """
import sys
from tensorplay_core import discovery, select
from tensorplay_core.testing.facade import Facade

runtime = select(sys.argv[1])
bench = discovery.find_workbench(sys.argv[1])(runtime, runtime.resolve_device(None))
facade, x, how = Facade(bench), bench.buffer([1.0, 2.0]), sys.argv[2]
made, other, pool = facade.new(), facade.new(), facade.pool()
with facade.capture(made, pool):
    y = bench.double(x)
made.replay()
made.itself = made
if how == "capturing":
    other.capture_begin(pool)
    z = bench.double(y)
if how == "failing":
    with facade.capture(other):
        z = bench.double(y)
        sys.exit(0)
"""


@pytest.mark.needs("pool_create")
@pytest.mark.parametrize("how", ["capturing", "failing"])
def test_the_interpreter_exits_cleanly_around_live_graphs(facade: Facade, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AT_EXIT, facade.driver, how],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# what a graph owns


def test_a_graph_owns_what_it_reads(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0, 0.0])
    operands = [workbench.buffer([1.0, 2.0]), workbench.buffer([30.0, 40.0])]

    def work() -> None:
        workbench.add_(total, operands[0])
        workbench.add_(total, workbench.double(operands[1]))

    made = facade.record(work)
    operands.clear()
    churn(workbench, length=2)
    made.replay()
    assert workbench.read(total) == [61.0, 82.0]


def test_a_graph_owns_what_it_is_told_to_retain_until_its_end(
    workbench: Workbench, facade: Facade
) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    during, after = _Owned(), _Owned()
    seen = [weakref.ref(during), weakref.ref(after)]
    with facade.capture(made):
        workbench.add_(total, 1.0)
        made.retain(during)
    made.retain(after)
    del during, after
    gc.collect()
    assert None not in [ref() for ref in seen]
    made.replay()
    made.reset()
    gc.collect()
    assert [ref() for ref in seen] == [None, None]
    with pytest.raises(GraphStateError) as caught:
        made.retain(_Owned())
    four_parts(caught.value)


def test_a_graph_that_checks_liveness_refuses_to_read_the_dead(
    workbench: Workbench, facade: Facade
) -> None:
    total, operand = workbench.buffer([0.0]), workbench.buffer([1.0])
    made = facade.new()
    with facade.capture(made, check_input_liveness=True):
        workbench.add_(total, operand)
    made.replay()
    assert workbench.read(total) == [1.0]
    del operand
    gc.collect()
    with unchanged(facade), pytest.raises(StaleGraph) as caught:
        made.replay()
    four_parts(caught.value)
    assert __file__ in str(caught.value), "where it went"
    assert workbench.read(total) == [1.0]


def test_a_dropped_graph_gives_its_memory_back(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0] * 8)
    before = workbench.live_bytes()
    made = facade.new()
    with facade.capture(made):
        result = workbench.double(total)
    made.replay()
    workbench.synchronize()
    del made, result
    assert workbench.live_bytes() == before


# the garbage collector


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_it_was(
    workbench: Workbench, facade: Facade, enabled: bool
) -> None:
    total, was, during = workbench.buffer([0.0]), gc.isenabled(), []
    (gc.enable if enabled else gc.disable)()
    try:
        with facade.capture(facade.new()):
            workbench.add_(total, 1.0)
            during.append(gc.isenabled())
        assert gc.isenabled() is enabled
        with pytest.raises(KeyError), facade.capture(facade.new()):
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert during == [False]
