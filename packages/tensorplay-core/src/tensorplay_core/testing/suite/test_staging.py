"""Of staged launches: fresh inputs in, launch, owned results out, or nothing changed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tensorplay_core.errors import GraphStateError, SignatureMismatch, TensorplayError
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.moments import Moments, in_a_thread
from tensorplay_core.testing.oracle import churn
from tensorplay_core.testing.workbench import Workbench

from .checks import four_parts, unchanged

pytestmark = pytest.mark.needs("stage")


def test_a_plan_stages_inputs_launches_and_gives_results_that_stay(
    workbench: Workbench, facade: Facade
) -> None:
    x, y = workbench.buffer([0.0, 0.0]), workbench.buffer([0.0, 0.0])
    total = workbench.buffer([0.0, 0.0])

    def work() -> None:
        workbench.copy_(total, x)
        workbench.add_(total, y)

    made = facade.record(work)
    plan = made.stage([x, y], [total])
    owned = []
    for step in range(20):
        given = workbench.buffer([float(step), 1.0]), workbench.buffer([0.5, float(step)])
        owned.append(plan(given))
        del given
    churn(workbench, length=2)
    for step, results in enumerate(owned):
        assert isinstance(results, tuple)
        assert workbench.read(results[0]) == [step + 0.5, step + 1.0]


def test_a_plan_runs_on_the_stream_it_is_given(workbench: Workbench, facade: Facade) -> None:
    x, total = workbench.buffer([1.0]), workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, x))
    plan = made.stage([x], [total])
    chosen = workbench.stream()
    with unchanged(facade):
        (result,) = plan([workbench.buffer([5.0])], stream=chosen)
    assert workbench.read(result) == [5.0]


@pytest.mark.parametrize("form", ["plan", "stage_and_launch"])
def test_inputs_of_another_count_or_shape_are_refused_and_nothing_runs(
    workbench: Workbench, facade: Facade, form: str
) -> None:
    x, y = workbench.buffer([1.0, 2.0]), workbench.buffer([3.0, 4.0])
    total = workbench.buffer([0.0, 0.0])

    def work() -> None:
        workbench.add_(total, x)
        workbench.add_(total, y)

    made = facade.record(work)
    plan = made.stage([x, y])
    good = workbench.buffer([9.0, 9.0])
    for wrong in ([good], [good, good, good], [good, workbench.buffer([9.0])]):
        with unchanged(facade), pytest.raises(SignatureMismatch) as caught:
            plan(wrong) if form == "plan" else made.stage_and_launch([x, y], wrong)
        four_parts(caught.value)
        assert caught.value.differences
        assert [workbench.read(one) for one in (x, y, total)] == [[1, 2], [3, 4], [0, 0]]


def test_staging_copies_every_input_and_launches_once(workbench: Workbench, facade: Facade) -> None:
    static = [workbench.buffer([0.0, 0.0]) for _ in range(5)]
    total = workbench.buffer([0.0, 0.0])

    def work() -> None:
        for one in static:
            workbench.add_(total, one)

    made = facade.record(work)
    expected = [0.0, 0.0]
    for step in range(50):
        fresh = [workbench.buffer([float(step), float(place)]) for place in range(5)]
        made.stage_and_launch(static, fresh)
        expected = [expected[0] + 5 * step, expected[1] + 10]
    assert workbench.read(total) == expected


def test_a_static_buffer_may_stand_for_itself_or_for_another(
    workbench: Workbench, facade: Facade
) -> None:
    x, y = workbench.buffer([1.0]), workbench.buffer([2.0])
    total = workbench.buffer([0.0])

    def work() -> None:
        workbench.copy_(total, x)
        workbench.add_(total, x)
        workbench.add_(total, y)

    made = facade.record(work)
    made.stage_and_launch([x, y], [x, workbench.buffer([5.0])])
    assert workbench.read(total) == [7.0]
    made.stage_and_launch([x, y], [y, x])  # A swap: neither copy may see the other's result.
    assert [workbench.read(one) for one in (x, y, total)] == [[5.0], [1.0], [11.0]]


@pytest.mark.parametrize("end", ["close", "reset", "capture again"])
def test_a_plan_of_a_graph_that_is_gone_is_refused_and_writes_nothing(
    workbench: Workbench, facade: Facade, end: str
) -> None:
    x, total = workbench.buffer([1.0]), workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, x))
    plan = made.stage([x], [total])
    if end == "close":
        made.close()
    else:
        made.reset()
    if end == "capture again":
        with facade.capture(made):
            workbench.add_(total, x)
    with unchanged(facade), pytest.raises(GraphStateError) as caught:
        plan([workbench.buffer([5.0])])
    four_parts(caught.value)
    assert [workbench.read(one) for one in (x, total)] == [[1.0], [0.0]]


@pytest.mark.needs("graph_update")
@pytest.mark.parametrize("called", [True, False], ids=["called before", "not called before"])
def test_a_plan_from_before_an_update_is_refused_and_writes_nothing(
    workbench: Workbench, facade: Facade, called: bool
) -> None:
    x, y, total = (workbench.buffer([value]) for value in (1.0, 2.0, 0.0))
    made = facade.record(lambda: workbench.add_(total, x))
    made.replay()
    plan = made.stage([x])
    if called:
        plan([x])
    before = workbench.read(total)
    made.update(facade.record(lambda: workbench.add_(total, y)))
    with unchanged(facade), pytest.raises(GraphStateError) as caught:
        plan([workbench.buffer([5.0])])
    four_parts(caught.value)
    assert [workbench.read(one) for one in (x, y, total)] == [[1.0], [2.0], before]
    made.stage([y])([workbench.buffer([10.0])])
    assert workbench.read(total) == [before[0] + 10.0]
    made.stage_and_launch([y], [workbench.buffer([100.0])])
    assert workbench.read(total) == [before[0] + 110.0]


def test_staging_before_the_capture_is_refused(workbench: Workbench, facade: Facade) -> None:
    x = workbench.buffer([1.0])
    with pytest.raises(GraphStateError) as caught:
        facade.new().stage_and_launch([x], [x])
    four_parts(caught.value)


@pytest.mark.parametrize("form", ["plan", "stage_and_launch"])
def test_a_staged_call_in_the_midst_of_another_spoils_nothing(
    workbench: Workbench, facade: Facade, form: str
) -> None:
    """A signal handler or a finaliser makes it: it is served, or refused, and never half of it."""
    x, y, total = (workbench.buffer([0.0]) for _ in range(3))

    def work() -> None:
        workbench.add_(total, x)
        workbench.add_(total, y)

    made = facade.record(work)
    plan = made.stage([x, y])
    ours, theirs = (
        [workbench.buffer([value]) for value in pair] for pair in ((1, 10), (100, 1000))
    )

    def call(inputs: list[Any]) -> None:
        plan(inputs) if form == "plan" else made.stage_and_launch([x, y], inputs)

    call(ours)
    reference = Moments(0, lambda: None)
    in_a_thread(lambda: call(ours), reference)
    for number in reference.first.values():
        served: list[bool] = []

        def within(served: list[bool] = served) -> None:
            with suppress(TensorplayError):
                call(theirs)
                served.append(True)

        workbench.write(total, [0.0])
        moments = Moments(number, within)
        in_a_thread(lambda: call(ours), moments)
        workbench.synchronize()
        assert workbench.read(total) == [11.0 + 1100.0 * len(served)], moments.where


def test_an_update_in_the_midst_of_a_staged_call_mixes_nothing(
    workbench: Workbench, facade: Facade
) -> None:
    """The call gives what the old work makes of its inputs, or is refused; so is the update."""
    x, y, total = (workbench.buffer([0.0]) for _ in range(3))
    given = [workbench.buffer([value]) for value in (1.0, 10.0)]

    def recorded(more: float) -> Any:
        def work() -> None:
            workbench.add_(total, x)
            workbench.add_(total, y)
            workbench.add_(total, more)

        return facade.record(work)

    def attempt(number: int) -> Moments:
        made, other = recorded(100.0), recorded(200.0)
        made.replay()
        plan = made.stage([x, y], [total])
        plan(given)
        workbench.write(total, [0.0])

        def midst() -> None:
            with suppress(TensorplayError):
                made.update(other)

        def call() -> None:
            with suppress(GraphStateError):
                (result,) = plan(given)
                results.append(workbench.read(result))

        results: list[Any] = []
        moments = Moments(number, midst)
        in_a_thread(call, moments)
        assert results in ([], [[111.0]]), moments.where
        return moments

    for number in attempt(0).first.values():
        attempt(number)
