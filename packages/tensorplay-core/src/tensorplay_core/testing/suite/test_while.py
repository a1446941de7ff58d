"""Of while nodes: sampled before and after each run of the body, capped, forced once."""

from __future__ import annotations

from typing import Any

import pytest

from tensorplay_core.errors import (
    ConditionalError,
)
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import refused, unchanged

pytestmark = pytest.mark.needs(
    "conditional_open", "conditional_enter", "conditional_set", "conditional_exit"
)


def _countdown(bench: Workbench, made: Any, count: Any, flag: Any, **options: Any) -> None:
    """Captures ``while flag: count += 1; flag = count < 5``."""
    with made.while_loop(flag, **options):
        bench.add_(count, 1.0)
        bench.less_(flag, count, 5.0)


@pytest.mark.parametrize("start", [0.0, 3.0, 4.0])
def test_a_while_repeats_until_its_flag_falls(
    workbench: Workbench, facade: Facade, start: float
) -> None:
    count, flag, made = workbench.buffer([0.0]), workbench.flag(False), facade.new()
    with unchanged(facade), facade.capture(made):
        workbench.less_(flag, count, 5.0)
        _countdown(workbench, made, count, flag)
    for _ in range(2):
        workbench.write(count, [start])
        made.replay()
        assert workbench.read(count) == [5.0]
        assert workbench.read(flag) == [0.0]


def test_a_while_whose_flag_is_down_runs_nothing(workbench: Workbench, facade: Facade) -> None:
    count, flag, made = workbench.buffer([0.0]), workbench.flag(False), facade.new()
    with facade.capture(made):
        _countdown(workbench, made, count, flag)
        workbench.add_(count, 100.0)
    made.replay()
    assert workbench.read(count) == [100.0]


@pytest.mark.parametrize(("start", "expected"), [(0.0, 5.0), (4.0, 5.0), (5.0, 6.0), (9.0, 10.0)])
def test_first_runs_the_body_whatever_the_flag_holds(
    workbench: Workbench, facade: Facade, start: float, expected: float
) -> None:
    count, flag, made = workbench.buffer([0.0]), workbench.flag(False), facade.new()
    with facade.capture(made):
        _countdown(workbench, made, count, flag, first=True)
    for held in (0.0, 1.0):
        workbench.write(count, [start])
        workbench.write(flag, [held])
        made.replay()
        assert workbench.read(count) == [expected]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("most", [1, 3, 5, 7])
def test_max_steps_ends_a_loop_at_each_replay_anew(
    workbench: Workbench, facade: Facade, most: int, first: bool
) -> None:
    count, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with facade.capture(made):
        _countdown(workbench, made, count, flag, max_steps=most, first=first)
    for _ in range(3):
        workbench.write(count, [0.0])
        workbench.write(flag, [1.0])
        made.replay()
        assert workbench.read(count) == [min(float(most), 5.0)]


def test_the_last_condition_decides(workbench: Workbench, facade: Facade) -> None:
    count, go, stop = workbench.buffer([0.0]), workbench.flag(True), workbench.flag(False)
    made = facade.new()
    with facade.capture(made), made.while_loop(go) as loop:
        workbench.add_(count, 1.0)
        loop.condition(go)
        workbench.less_(go, count, 3.0)
        loop.condition(stop)
        loop.condition(go)
    made.replay()
    assert workbench.read(count) == [3.0]


def test_a_condition_is_sampled_where_it_stands(workbench: Workbench, facade: Facade) -> None:
    count, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with facade.capture(made), made.while_loop(flag) as loop:
        workbench.add_(count, 1.0)
        workbench.less_(flag, count, 3.0)
        loop.condition(flag)
        workbench.less_(flag, count, -1.0)
        loop.condition(flag)
    made.replay()
    assert workbench.read(count) == [1.0]


def test_a_loop_may_be_decided_by_another_flag(workbench: Workbench, facade: Facade) -> None:
    count, start, again = workbench.buffer([0.0]), workbench.flag(True), workbench.flag(False)
    made = facade.new()
    with facade.capture(made), made.while_loop(start) as loop:
        workbench.add_(count, 1.0)
        workbench.less_(again, count, 4.0)
        loop.condition(again)
    made.replay()
    assert workbench.read(count) == [4.0]
    assert workbench.read(start) == [1.0]


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_in_the_body_may_be_what_ends_the_loop(
    workbench: Workbench, facade: Facade, taken: bool
) -> None:
    count, go, gate, made = (
        workbench.buffer([0.0]),
        workbench.flag(True),
        workbench.flag(taken),
        facade.new(),
    )
    with facade.capture(made), made.while_loop(go, max_steps=9):
        workbench.add_(count, 1.0)
        with made.if_then(gate):
            workbench.less_(go, count, 4.0)
    made.replay()
    assert workbench.read(count) == [4.0 if taken else 9.0]


@pytest.mark.needs("array_copy")
def test_a_copy_into_the_predicate_may_be_what_ends_the_loop(
    workbench: Workbench, facade: Facade
) -> None:
    count, go, again, made = (
        workbench.buffer([0.0]),
        workbench.flag(True),
        workbench.flag(True),
        facade.new(),
    )
    with facade.capture(made), made.while_loop(go):
        workbench.add_(count, 1.0)
        workbench.less_(again, count, 4.0)
        workbench.runtime.array_copy(go, again)
    made.replay()
    assert workbench.read(count) == [4.0]


def test_a_body_that_cannot_end_its_loop_is_refused(workbench: Workbench, facade: Facade) -> None:
    count, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with refused(facade, ConditionalError), facade.capture(made), made.while_loop(flag):
        workbench.add_(count, 1.0)
    assert workbench.read(count) == [0.0]


def test_carried_values_change_places(workbench: Workbench, facade: Facade) -> None:
    a, b, scratch = workbench.buffer([1.0]), workbench.buffer([2.0]), workbench.buffer([0.0])
    count, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with facade.capture(made), made.while_loop(flag):
        workbench.copy_(scratch, a)
        workbench.copy_(a, b)
        workbench.copy_(b, scratch)
        workbench.add_(count, 1.0)
        workbench.less_(flag, count, 3.0)
    made.replay()
    assert [workbench.read(one) for one in (a, b)] == [[2.0], [1.0]]
