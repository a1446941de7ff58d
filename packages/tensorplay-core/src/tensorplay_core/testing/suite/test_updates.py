"""Of updates: one graph takes over what another captured, or both are as they were."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core import CUDAGraph
from tensorplay_core.errors import DriverCallFailed, GraphStateError
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.oracle import churn
from tensorplay_core.testing.workbench import Workbench

from .checks import captures_again, four_parts

pytestmark = pytest.mark.needs("graph_update")


def test_an_update_runs_the_other_graphs_work(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    first = facade.record(lambda: workbench.add_(total, 1.0))
    second = facade.record(lambda: workbench.add_(total, 10.0))
    first.update(second)
    first.replay()
    assert workbench.read(total) == [10.0]
    with pytest.raises(GraphStateError):
        second.replay()


def test_an_updated_graph_owns_the_others_operands_and_results(
    workbench: Workbench, facade: Facade
) -> None:
    total, operands = workbench.buffer([0.0]), [workbench.buffer([1.0]), workbench.buffer([5.0])]
    two, results = [facade.new(), facade.new()], []
    for made, operand in zip(two, operands, strict=True):
        with facade.capture(made):
            workbench.add_(total, operand)
            results.append(workbench.double(operand))
    two[0].update(two.pop())
    del operands[:], operand, results[0]
    churn(workbench, length=1)
    for _ in range(2):
        two[0].replay()
    assert workbench.read(total) == [10.0]
    assert workbench.read(results[0]) == [10.0]


def test_an_update_by_other_work_still_runs_it_and_says_why_not_in_place(
    workbench: Workbench, facade: Facade
) -> None:
    total, others = workbench.buffer([1.0]), [workbench.buffer([3.0])]

    def more() -> None:
        workbench.copy_(total, others[0])
        workbench.add_(total, others[0])
        workbench.add_(total, 1.0)

    made = facade.record(lambda: workbench.add_(total, 1.0))
    outcome = made.update(facade.record(more))
    others.clear()
    churn(workbench, length=1)
    made.replay()
    assert workbench.read(total) == [7.0]
    assert outcome.in_place == (not outcome.reason)


class Pair:
    """Two graphs: one adds 1.0 to a total, the other 10.0, in two nodes if ``unlike``."""

    def __init__(self, workbench: Workbench, facade: Facade, *, unlike: bool = False) -> None:
        self.bench, self.facade = workbench, facade
        self.total = workbench.buffer([0.0])
        self.first = self.adding(1.0)
        self.second = self.adding(*[10.0, 0.0] if unlike else [10.0])
        self.first.replay()
        self.second.replay()
        workbench.write(self.total, [0.0])

    def adding(self, *numbers: float) -> CUDAGraph:
        """A graph that adds them."""

        def work() -> None:
            for number in numbers:
                self.bench.add_(self.total, number)

        return self.facade.record(work)

    def adds(self, made: CUDAGraph) -> float:
        """What a replay adds."""
        before = self.bench.read(self.total)[0]
        made.replay()
        self.bench.synchronize()
        return self.bench.read(self.total)[0] - before


@pytest.fixture(params=[False, True], ids=["alike", "unlike"])
def pair(workbench: Workbench, facade: Facade, request: pytest.FixtureRequest) -> Pair:
    """See ``Pair``."""
    return Pair(workbench, facade, unlike=request.param)


def in_another_thread(work: Callable[[], object]) -> None:
    """Runs it there, and raises what it raises."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in found:
        raise error


@pytest.fixture
def meanwhile(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], object]], None]:
    """Lets something happen once, right after the driver was asked to update."""
    real = workbench.runtime.graph_update

    def arrange(act: Callable[[], object]) -> None:
        def update(executable: Any, template: Any) -> Any:
            monkeypatch.setattr(workbench.runtime, "graph_update", real)
            result = real(executable, template)
            act()
            return result

        monkeypatch.setattr(workbench.runtime, "graph_update", update)

    return arrange


@pytest.mark.parametrize("asked", ["graph_update", "graph_instantiate"])
def test_an_update_that_fails_leaves_both_graphs_as_they_were(
    workbench: Workbench, facade: Facade, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    pair = Pair(workbench, facade, unlike=True)

    def fail(*_: object) -> Any:
        raise DriverCallFailed(
            call="cuGraphInstantiate",
            code=2,
            code_name="CUDA_ERROR_OUT_OF_MEMORY",
            meaning="out of memory",
            subject="a graph",
            remedy="Free some.",
        )

    with monkeypatch.context() as patch:
        patch.setattr(workbench.runtime, asked, fail)
        try:
            outcome = pair.first.update(pair.second)
        except DriverCallFailed:
            outcome = None
    if outcome is None:
        assert (pair.adds(pair.first), pair.adds(pair.second)) == (1.0, 10.0)
        pair.first.update(pair.second)
    else:  # A driver may update even these in place, and then instantiates nothing.
        assert outcome.in_place
        assert asked == "graph_instantiate"
    assert pair.adds(pair.first) == 10.0


@pytest.mark.parametrize("which", ["first", "second"])
@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_graph_that_is_ended_meanwhile_ends_and_the_other_goes_on(
    pair: Pair, meanwhile: Callable[[Callable[[], object]], None], which: str, how: str
) -> None:
    ended = getattr(pair, which)
    other = pair.second if which == "first" else pair.first
    meanwhile(lambda: in_another_thread(getattr(ended, how)))
    with pytest.raises(GraphStateError) as caught:
        pair.first.update(pair.second)
    four_parts(caught.value)
    for use in (ended.replay, ended.instantiate):
        with pytest.raises(GraphStateError):
            use()
    assert pair.adds(other) == (10.0 if which == "first" else 1.0)
    other.close()
    captures_again(pair.facade)


def test_a_graph_that_is_captured_anew_meanwhile_keeps_that(
    pair: Pair, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    def anew() -> None:
        pair.first.reset()
        with pair.facade.capture(pair.first, capture_error_mode="thread_local"):
            pair.bench.add_(pair.total, 100.0)

    meanwhile(lambda: in_another_thread(anew))
    with pytest.raises(GraphStateError):
        pair.first.update(pair.second)
    assert (pair.adds(pair.first), pair.adds(pair.second)) == (100.0, 10.0)


def test_a_graph_is_updated_and_updated_from_in_one_place_at_a_time(
    pair: Pair, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    third, refused = pair.adding(1000.0), []

    def others() -> None:
        for one, other in ((third, pair.second), (pair.first, third), (pair.second, third)):
            with pytest.raises(GraphStateError) as caught:
                one.update(other)
            refused.append(caught.value)

    def act() -> None:
        others()
        in_another_thread(others)

    meanwhile(act)
    pair.first.update(pair.second)
    assert len(refused) == 6
    for error in refused:
        four_parts(error)
    assert (pair.adds(pair.first), pair.adds(third)) == (10.0, 1000.0)
    pair.first.update(third)
    assert pair.adds(pair.first) == 1000.0


@pytest.mark.needs("stage")
def test_a_staged_launch_takes_the_graph_as_it_is_during_an_update(
    pair: Pair, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    failed: list[BaseException] = []
    pair.first.stage_and_launch([], [])

    def launch() -> None:
        try:
            pair.first.stage_and_launch([], [])
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=launch)
    meanwhile(thread.start)
    pair.first.update(pair.second)
    thread.join()
    assert failed == []
    pair.bench.synchronize()
    assert pair.bench.read(pair.total)[0] in (2.0, 11.0)


@pytest.mark.needs("stage")
def test_an_update_while_a_staged_launch_is_prepared_is_no_end_of_those(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pair.bench.runtime.stage

    def stage(executable: Any, static_inputs: Any, results: Any) -> Any:
        monkeypatch.setattr(pair.bench.runtime, "stage", real)
        made = real(executable, static_inputs, results)
        in_another_thread(lambda: pair.first.update(pair.second))
        return made

    monkeypatch.setattr(pair.bench.runtime, "stage", stage)
    for step in (1, 2, 3):
        pair.first.stage_and_launch([], [])
        pair.bench.synchronize()
        assert pair.bench.read(pair.total) == [10.0 * step]


def test_what_a_graph_was_given_to_keep_it_keeps_over_an_update(pair: Pair) -> None:
    class Kept:
        pass

    mine, others = Kept(), Kept()
    refs = weakref.ref(mine), weakref.ref(others)
    pair.first.retain(mine)
    pair.second.retain(others)
    del mine, others
    pair.first.update(pair.second)
    gc.collect()
    assert all(ref() is not None for ref in refs)
    pair.first.update(pair.adding(3.0))
    pair.bench.synchronize()
    gc.collect()
    assert refs[0]() is not None
    assert pair.adds(pair.first) == 3.0
    pair.first.close()
    pair.bench.synchronize()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


@pytest.mark.needs("conditional_open")
@pytest.mark.parametrize("replayed", [False, True], ids=["fresh", "replayed"])
def test_an_update_by_work_with_a_body_runs_it(
    workbench: Workbench, facade: Facade, replayed: bool
) -> None:
    """Of such a graph a driver may allow one executable at a time."""
    flag, total = workbench.flag(True), workbench.buffer([0.0])
    first, second = facade.record(lambda: workbench.add_(total, 1.0)), facade.new()
    first.replay()
    with facade.capture(second), second.if_then(flag):
        workbench.add_(total, 10.0)
    if replayed:
        second.replay()
    workbench.write(total, [0.0])
    first.update(second)
    for _ in range(2):
        first.replay()
    workbench.synchronize()
    assert workbench.read(total) == [20.0]
    again = facade.record(lambda: workbench.add_(total, 1.0))
    first.update(again)
    first.replay()
    workbench.synchronize()
    assert workbench.read(total) == [21.0]


@pytest.mark.needs("stage")
def test_a_graph_that_was_updated_from_is_not_waited_for(pair: Pair) -> None:
    """Its staged calls are refused at once, also while the update is under way."""
    refused: list[GraphStateError] = []
    real = pair.second._forget

    def forget() -> None:
        real()

        def call() -> None:
            with pytest.raises(GraphStateError) as caught:
                pair.second.stage_and_launch([], [])
            refused.append(caught.value)

        in_another_thread(call)

    pair.second._forget = forget  # type: ignore[method-assign]
    pair.first.update(pair.second)
    assert len(refused) >= 1
    assert pair.adds(pair.first) == 10.0
