"""Of conditionals: if, else and switch, at any depth, sampled when the replay gets there."""

from __future__ import annotations

from typing import Any

import pytest

from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.oracle import churn
from tensorplay_core.testing.workbench import Workbench

from .checks import unchanged

pytestmark = pytest.mark.needs(
    "conditional_open", "conditional_enter", "conditional_set", "conditional_exit"
)


def _countdown(bench: Workbench, made: Any, count: Any, flag: Any, **options: Any) -> None:
    """Captures ``while flag: count += 1; flag = count < 5``."""
    with made.while_loop(flag, **options):
        bench.add_(count, 1.0)
        bench.less_(flag, count, 5.0)


# if, else


def test_an_if_runs_its_body_by_the_flag_of_each_replay(
    workbench: Workbench, facade: Facade
) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with unchanged(facade), facade.capture(made):
        with made.if_then(flag):
            workbench.add_(total, 1.0)
        workbench.add_(total, 100.0)
    assert workbench.read(total) == [0.0]
    expected = 0.0
    for value in (True, False, False, True):
        workbench.write(flag, [float(value)])
        made.replay()
        expected += 101.0 if value else 100.0
        assert workbench.read(total) == [expected]


def test_an_if_samples_work_captured_before_it(workbench: Workbench, facade: Facade) -> None:
    x, total, flag, made = (
        workbench.buffer([0.0]),
        workbench.buffer([0.0]),
        workbench.flag(False),
        facade.new(),
    )
    with facade.capture(made):
        workbench.less_(flag, x, 10.0)
        with made.if_then(flag):
            workbench.add_(total, x)
        workbench.less_(flag, total, -1.0)  # Afterwards: it must not matter.
    for value in (1.0, 20.0, 3.0):
        workbench.write(x, [value])
        made.replay()
    assert workbench.read(total) == [4.0]


def test_one_of_two_branches_runs(workbench: Workbench, facade: Facade) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(False), facade.new()
    with facade.capture(made), made.if_else(flag) as (then, other):
        with then:
            workbench.add_(total, 1.0)
        with other:
            workbench.add_(total, 10.0)
    for value, expected in ((1.0, 1.0), (0.0, 11.0), (0.0, 21.0), (1.0, 22.0)):
        workbench.write(flag, [value])
        made.replay()
        assert workbench.read(total) == [expected]


@pytest.mark.parametrize("value", [True, False])
def test_a_branch_may_rewrite_the_predicate(
    workbench: Workbench, facade: Facade, value: bool
) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(value), facade.new()
    with facade.capture(made), made.if_else(flag) as (then, other):
        with then:
            workbench.less_(flag, total, -1.0)  # False, once 0 is added to nothing below -1.
            workbench.add_(total, 1.0)
        with other:
            workbench.less_(flag, total, 1000.0)  # True.
            workbench.add_(total, 10.0)
    made.replay()
    assert workbench.read(total) == [1.0 if value else 10.0]
    assert workbench.read(flag) == [float(not value)]


@pytest.mark.parametrize(
    "entered", [(), (0,), (1,), (1, 0)], ids=["none", "then", "else", "swapped"]
)
def test_a_branch_that_is_not_entered_is_empty(
    workbench: Workbench, facade: Facade, entered: tuple[int, ...]
) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(False), facade.new()
    with facade.capture(made):
        workbench.add_(total, 100.0)
        with made.if_else(flag) as bodies:
            for place in entered:
                with bodies[place]:
                    workbench.add_(total, (1.0, 10.0)[place])
    for value in (True, False):
        workbench.write(flag, [float(value)])
        workbench.write(total, [0.0])
        made.replay()
        place = 0 if value else 1
        assert workbench.read(total) == [100.0 + ((1.0, 10.0)[place] if place in entered else 0)]


def test_empty_bodies_run_as_nothing(workbench: Workbench, facade: Facade) -> None:
    total, flag, index = workbench.buffer([0.0]), workbench.flag(True), workbench.index(0)
    made = facade.new()
    with facade.capture(made):
        with made.if_then(flag):
            pass
        with made.if_else(flag) as (then, other):
            with then:
                pass
            with other:
                pass
        with made.switch(index, 2):
            pass
        workbench.add_(total, 1.0)
    made.replay()
    assert workbench.read(total) == [1.0]


def test_forty_ifs_stand_in_one_graph(workbench: Workbench, facade: Facade) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    flags = [workbench.flag(False) for _ in range(40)]
    with facade.capture(made):
        for place, flag in enumerate(flags):
            with made.if_then(flag):
                workbench.add_(total, float(place))
    for divisor in (2, 3, 7):
        workbench.write(total, [0.0])
        for place, flag in enumerate(flags):
            workbench.write(flag, [float(place % divisor == 0)])
        made.replay()
        assert workbench.read(total) == [float(sum(range(0, 40, divisor)))]


# switch


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_switch_runs_the_case_of_its_index_and_none_out_of_range(
    workbench: Workbench, facade: Facade, n: int
) -> None:
    total, index, made = workbench.buffer([0.0]), workbench.index(0), facade.new()
    with facade.capture(made):
        with made.switch(index, n) as cases:
            assert len(cases) == n
            for place, case in enumerate(cases):
                with case:
                    workbench.add_(total, 10.0**place)
        workbench.add_(total, 0.5)
    for chosen in (*range(-2, n + 2), -(2**31), 2**31 - 1):
        workbench.write(index, [chosen])
        workbench.write(total, [0.0])
        made.replay()
        assert workbench.read(total) == [(10.0**chosen if 0 <= chosen < n else 0.0) + 0.5]


@pytest.mark.needs("array_copy")
def test_a_case_may_rewrite_the_index(workbench: Workbench, facade: Facade) -> None:
    total, index, other = workbench.buffer([0.0]), workbench.index(0), workbench.index(1)
    made = facade.new()
    with facade.capture(made), made.switch(index, 2) as (first, second):
        with first:
            workbench.runtime.array_copy(index, other)
            workbench.add_(total, 1.0)
        with second:
            workbench.add_(total, 10.0)
    for expected in (1.0, 11.0):
        made.replay()
        assert workbench.read(total) == [expected]


def test_a_switch_may_leave_cases_out(workbench: Workbench, facade: Facade) -> None:
    total, index, made = workbench.buffer([0.0]), workbench.index(0), facade.new()
    with facade.capture(made), made.switch(index, 3) as cases, cases[1]:
        workbench.add_(total, 1.0)
    for chosen in range(3):
        workbench.write(index, [chosen])
        made.replay()
    assert workbench.read(total) == [1.0]


# nesting


def test_a_while_stands_in_an_if_in_a_while(workbench: Workbench, facade: Facade) -> None:
    outer, inner, total = (workbench.buffer([0.0]) for _ in range(3))
    go, even, again = workbench.flag(True), workbench.flag(True), workbench.flag(False)
    made = facade.new()

    def eager() -> float:
        result, odd = 0, False
        for _ in range(4):
            if not odd:
                result += 3
            result += 100
            odd = not odd
        return float(result)

    with facade.capture(made), made.while_loop(go):
        with made.if_else(even) as (then, other):
            with then:
                workbench.add_(inner, -3.0)
                workbench.less_(again, inner, 0.0)
                with made.while_loop(again):
                    workbench.add_(total, 1.0)
                    workbench.add_(inner, 1.0)
                    workbench.less_(again, inner, 0.0)
                workbench.less_(even, total, -1.0)
            with other:
                workbench.less_(even, inner, 1000.0)
        workbench.add_(total, 100.0)
        workbench.add_(outer, 1.0)
        workbench.less_(go, outer, 4.0)
    for _ in range(2):
        for buffer, value in ((outer, 0.0), (inner, 0.0), (total, 0.0), (go, 1.0), (even, 1.0)):
            workbench.write(buffer, [value])
        made.replay()
        assert workbench.read(total) == [eager()]


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_conditionals_nest(workbench: Workbench, facade: Facade, depth: int) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    flags = [workbench.flag(True) for _ in range(depth)]

    def nest(level: int) -> None:
        workbench.add_(total, 10.0**level)
        if level < depth:
            with made.if_then(flags[level]):
                nest(level + 1)
            workbench.add_(total, 10.0**level)

    with facade.capture(made):
        nest(0)
    for closed in range(depth + 1):
        for level, flag in enumerate(flags):
            workbench.write(flag, [float(level != closed)])
        workbench.write(total, [0.0])
        made.replay()
        reached = min(closed, depth)
        expected = sum(2 * 10.0**level for level in range(reached))
        expected += 2 * 10.0**reached if reached < depth else 10.0**depth
        assert workbench.read(total) == [expected]


def test_bodies_fork_and_join(workbench: Workbench, facade: Facade) -> None:
    left, right, flag = workbench.buffer([0.0]), workbench.buffer([0.0]), workbench.flag(True)
    made = facade.new()
    with facade.capture(made), made.while_loop(flag):
        side = workbench.fork()
        with workbench.on(side):
            workbench.add_(left, 1.0)
        workbench.add_(right, 2.0)
        workbench.join(side)
        workbench.add_(left, right)
        workbench.less_(flag, left, 10.0)
    made.replay()
    assert workbench.read(left) == [15.0]  # 3, 8, 15


def test_bodies_allocate(workbench: Workbench, facade: Facade) -> None:
    x, total, flag, made = (
        workbench.buffer([1.0, 2.0]),
        workbench.buffer([0.0, 0.0]),
        workbench.flag(True),
        facade.new(),
    )
    with facade.capture(made):
        outside = workbench.double(x)
        with made.while_loop(flag):
            fresh = workbench.double(outside)
            workbench.add_(total, fresh)
            with made.if_then(flag):
                workbench.add_(total, workbench.double(fresh))
            workbench.less_(flag, total, 30.0)
        del fresh
        after = workbench.double(total)
    churn(workbench, length=2)
    for _ in range(2):
        workbench.write(total, [0.0, 0.0])
        workbench.write(flag, [1.0])
        made.replay()
        assert workbench.read(total) == [36.0, 72.0]  # 12 a step
        assert workbench.read(after) == [72.0, 144.0]


def test_a_body_is_seen_as_capturing(workbench: Workbench, facade: Facade) -> None:
    total, flag, made, seen = (
        workbench.buffer([0.0]),
        workbench.flag(True),
        facade.new(),
        [],
    )
    with facade.capture(made):
        with made.if_then(flag):
            workbench.add_(total, 1.0)
            seen.append(facade.capturing())
        seen.append(facade.capturing())
    assert seen == [True, True]
    assert not facade.capturing()


def test_a_graph_owns_its_predicates(workbench: Workbench, facade: Facade) -> None:
    total, flag, index = workbench.buffer([0.0]), workbench.flag(True), workbench.index(1)
    made = facade.new()
    with facade.capture(made):
        with made.if_then(flag):
            workbench.add_(total, 1.0)
        with made.switch(index, 2) as (_, second), second:
            workbench.add_(total, 10.0)
    del flag, index
    churn(workbench, length=1)
    made.replay()
    assert workbench.read(total) == [11.0]


@pytest.mark.needs("graph_topology")
def test_the_topology_shows_bodies(workbench: Workbench, facade: Facade) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with facade.capture(made), made.if_then(flag):
        workbench.add_(total, 1.0)
        _countdown(workbench, made, total, flag)
    conditionals = [node for node in made.topology.walk() if node.kind == "conditional"]
    assert {node.name for node in conditionals} >= {"if", "while"}
    for node in conditionals:
        assert node.bodies, node.name
        assert all(body.topology.nodes for body in node.bodies), node.name
