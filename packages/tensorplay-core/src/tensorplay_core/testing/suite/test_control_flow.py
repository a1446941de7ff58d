"""Of the other forms of conditionals: the seed-named methods, ``cond()`` and ``while_loop()``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tensorplay_core.errors import PredicateError, SignatureMismatch
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import refused

pytestmark = pytest.mark.needs(
    "conditional_open", "conditional_enter", "conditional_set", "conditional_exit"
)


def test_seed_named_methods_equal_the_context_managers(
    workbench: Workbench, facade: Facade
) -> None:
    def by_methods(made: Any, count: Any, flag: Any, gate: Any) -> None:
        made.begin_capture_to_if_node(gate)
        made.begin_capture_to_while_node(flag)
        workbench.add_(count, 1.0)
        workbench.less_(flag, count, 5.0)
        made.set_conditional_handle_for_current_node(flag)
        made.end_capture_to_conditional_node()
        workbench.add_(count, 100.0)
        made.end_capture_to_conditional_node()

    def by_managers(made: Any, count: Any, flag: Any, gate: Any) -> None:
        with made.if_then(gate):
            with made.while_loop(flag) as loop:
                workbench.add_(count, 1.0)
                workbench.less_(flag, count, 5.0)
                loop.condition(flag)
            workbench.add_(count, 100.0)

    outcomes: list[list[list[float]]] = []
    for work in (by_methods, by_managers):
        count, flag, gate = workbench.buffer([0.0]), workbench.flag(True), workbench.flag(True)
        made = facade.new()
        made.capture_begin()
        work(made, count, flag, gate)
        made.capture_end()
        outcomes.append([])
        for start, runs, gated in ((0, 1, 1), (0, 0, 1), (0, 1, 0), (4, 1, 1)):
            for buffer, value in ((count, start), (flag, runs), (gate, gated)):
                workbench.write(buffer, [value])
            made.replay()
            outcomes[-1].append(workbench.read(count))
    assert outcomes[0] == outcomes[1] == [[105.0], [100.0], [0.0], [105.0]]


def _both_ways(
    bench: Workbench, facade: Facade, work: Callable[[], Any], feeds: list[Callable[[], None]]
) -> None:
    """Asserts that ``work`` gives the same arrays eagerly and as a graph, for each feed."""
    made = facade.new()
    with facade.capture(made):
        captured = work()
    for feed in feeds:
        feed()
        made.replay()
        replayed = [bench.read(one) for one in captured]
        feed()
        assert replayed == [bench.read(one) for one in work()]


@pytest.mark.needs("conditional_read", "array_like", "array_copy", "array_overlap")
def test_what_cond_returns_is_no_operand(workbench: Workbench, facade: Facade) -> None:
    """A branch may return what it was given; who writes to the result does not write to that."""
    flag, operand = workbench.flag(True), workbench.buffer([3.0])

    def work() -> Any:
        result = facade.cond(flag, lambda one: one, lambda one: workbench.double(one), operand)
        workbench.add_(result, 1.0)
        return result

    assert workbench.read(work()) == [4.0]
    assert workbench.read(operand) == [3.0]
    made = facade.new()
    with facade.capture(made):
        result = work()
    made.replay()
    assert workbench.read(result) == [4.0]
    assert workbench.read(operand) == [3.0]


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
@pytest.mark.parametrize("returned", ["another's", "one twice"])
def test_what_cond_returns_is_nobody_elses(
    workbench: Workbench, facade: Facade, returned: str
) -> None:
    """Nor is it another result's: who writes to one writes to that one only."""
    flag, x, other = workbench.flag(True), workbench.buffer([3.0]), workbench.buffer([5.0])

    def first(one: Any) -> Any:
        if returned == "another's":
            return other, workbench.double(one)
        made = workbench.double(one)
        return made, made

    def second(one: Any) -> Any:
        return workbench.double(one), other

    def work() -> Any:
        results = facade.cond(flag, first, second, x)
        workbench.add_(results[0], 1.0)
        return results

    def feed(value: float) -> Callable[[], None]:
        return lambda: workbench.write(flag, [value])

    _both_ways(workbench, facade, work, [feed(1.0), feed(0.0), feed(1.0)])
    assert [workbench.read(one) for one in (x, other)] == [[3.0], [5.0]]


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
def test_cond_is_the_same_eagerly_and_captured(workbench: Workbench, facade: Facade) -> None:
    x, y, flag = workbench.buffer([1.0, 2.0]), workbench.buffer([3.0, 4.0]), workbench.flag(True)

    def work() -> Any:
        return facade.cond(flag, lambda a, b: (workbench.double(a), b), lambda a, b: (b, a), x, y)

    def feed(value: float) -> Callable[[], None]:
        return lambda: workbench.write(flag, [value])

    _both_ways(workbench, facade, work, [feed(1.0), feed(0.0), feed(1.0)])
    assert [workbench.read(one) for one in (x, y)] == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
def test_a_branch_of_cond_may_write_the_predicate(workbench: Workbench, facade: Facade) -> None:
    x, flag = workbench.buffer([1.0]), workbench.flag(True)

    def then(a: Any) -> Any:
        workbench.less_(flag, a, -1.0)
        return workbench.double(a)

    def other(a: Any) -> Any:
        workbench.less_(flag, a, 1000.0)
        return a

    def work() -> tuple[Any, Any]:
        return facade.cond(flag, then, other, x), flag

    _both_ways(
        workbench,
        facade,
        work,
        [lambda: workbench.write(flag, [1.0]), lambda: workbench.write(flag, [0.0])],
    )


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
def test_while_loop_is_the_same_eagerly_and_captured(workbench: Workbench, facade: Facade) -> None:
    count, total = workbench.buffer([0.0]), workbench.buffer([1.0])

    def test(carried: Any, _: Any) -> Any:
        flag = workbench.flag(False) if not facade.capturing() else scratch
        workbench.less_(flag, carried, 5.0)
        return flag

    def body(carried: Any, value: Any) -> tuple[Any, Any]:
        workbench.add_(carried, 1.0)
        return carried, workbench.double(value)

    scratch = workbench.flag(False)

    def feed(value: float) -> Callable[[], None]:
        return lambda: workbench.write(count, [value])

    _both_ways(
        workbench,
        facade,
        lambda: facade.while_loop(test, body, (count, total)),
        [feed(0.0), feed(4.0), feed(5.0), feed(0.0)],
    )
    assert workbench.read(total) == [1.0]
    assert workbench.read(count) == [0.0]


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
@pytest.mark.parametrize("most", [None, 1, 2])
def test_while_loop_permutes_its_carry(
    workbench: Workbench, facade: Facade, most: int | None
) -> None:
    count, flag = workbench.buffer([0.0]), workbench.flag(True)
    carry = tuple(workbench.buffer([value]) for value in (1.0, 2.0, 3.0))

    def test(*_: Any) -> Any:
        workbench.less_(flag, count, 4.0)
        return flag

    def body(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        workbench.add_(count, 1.0)
        return c, a, b

    def feed() -> None:
        workbench.write(count, [0.0])

    options = {} if most is None else {"max_steps": most}
    _both_ways(
        workbench,
        facade,
        lambda: facade.while_loop(test, body, carry, **options),
        [feed, feed],
    )
    assert [workbench.read(one) for one in carry] == [[1.0], [2.0], [3.0]]


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
@pytest.mark.parametrize("most", [None, 1, 2, 3, 9])
def test_while_loop_runs_its_test_as_often_eagerly_and_captured(
    workbench: Workbench, facade: Facade, most: int | None
) -> None:
    """Once before each step and once after the last, whatever ended the loop: it may write."""
    x, tests, flag = workbench.buffer([0.0]), workbench.buffer([0.0]), workbench.flag(True)

    def test(carried: Any) -> Any:
        workbench.add_(tests, 1.0)
        workbench.less_(flag, carried, 3.0)
        return flag

    def body(carried: Any) -> Any:
        workbench.add_(carried, 1.0)
        return carried

    def work() -> Any:
        return facade.while_loop(test, body, x, max_steps=most), tests

    def feed() -> None:
        workbench.write(tests, [0.0])

    _both_ways(workbench, facade, work, [feed, feed])
    assert workbench.read(tests) == [1.0 + min(3, most or 3)]


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
def test_while_loop_may_carry_one_array_twice_and_return_one_twice(
    workbench: Workbench, facade: Facade
) -> None:
    x, limit, flag = workbench.buffer([1.0]), workbench.buffer([20.0]), workbench.flag(True)

    def test(a: Any, _: Any) -> Any:
        workbench.less_(flag, a, limit)
        return flag

    def body(a: Any, b: Any) -> tuple[Any, Any]:
        workbench.add_(a, b)
        return a, a

    _both_ways(
        workbench,
        facade,
        lambda: facade.while_loop(test, body, (x, x)),
        [lambda: workbench.write(x, [1.0]), lambda: workbench.write(x, [30.0])],
    )


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
@pytest.mark.parametrize("returned", ["one twice", "another's"])
def test_what_a_body_returns_is_carried_by_value(
    workbench: Workbench, facade: Facade, returned: str
) -> None:
    x, y, other = (workbench.buffer([value]) for value in (1.0, 2.0, 3.0))
    flag = workbench.flag(True)

    def test(a: Any, _: Any) -> Any:
        workbench.less_(flag, a, 40.0)
        return flag

    def body(a: Any, b: Any) -> tuple[Any, Any]:
        workbench.add_(a, 1.0)
        workbench.add_(a, b)  # Were they one array by now, it would have seen the 1.0 too.
        workbench.add_(b, 0.5)
        return (a, a) if returned == "one twice" else (a, other)

    _both_ways(
        workbench,
        facade,
        lambda: facade.while_loop(test, body, (x, y)),
        [lambda: workbench.write(x, [1.0])],
    )
    assert [workbench.read(one) for one in (x, y, other)] == [[1.0], [2.0], [3.0]]


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
@pytest.mark.parametrize("captured", [False, True])
def test_a_test_that_gives_no_predicate_is_refused(
    workbench: Workbench, facade: Facade, captured: bool
) -> None:
    x = workbench.buffer([1.0, 2.0])
    for wrong in (True, x, None):
        run = partial(facade.while_loop, lambda _, wrong=wrong: wrong, lambda a: a, x)
        with refused(facade, PredicateError):
            facade.record(run) if captured else run()
    assert workbench.read(x) == [1.0, 2.0]


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
def test_the_functions_nest(workbench: Workbench, facade: Facade) -> None:
    x, flag, low = workbench.buffer([1.0]), workbench.flag(True), workbench.flag(True)

    def test(a: Any) -> Any:
        workbench.less_(flag, a, 50.0)
        return flag

    def more(a: Any) -> Any:
        workbench.add_(a, 7.0)
        return a

    def body(a: Any) -> Any:
        workbench.less_(low, a, 10.0)
        return facade.cond(low, workbench.double, more, a)

    def work() -> tuple[Any]:
        return (facade.while_loop(test, body, x),)

    def feed(value: float) -> Callable[[], None]:
        return lambda: workbench.write(x, [value])

    _both_ways(workbench, facade, work, [feed(1.0), feed(11.0), feed(99.0)])


@pytest.mark.needs("conditional_read", "array_like", "array_copy")
def test_branches_of_other_structure_or_shape_are_refused(
    workbench: Workbench, facade: Facade
) -> None:
    x, y, flag = workbench.buffer([1.0]), workbench.buffer([1.0, 2.0]), workbench.flag(True)
    for then, other in (
        (lambda: x, lambda: (x, x)),
        (lambda: (x, x), lambda: (x,)),
        (lambda: x, lambda: y),
        (lambda: x, lambda: None),
    ):
        with refused(facade, SignatureMismatch), facade.capture(facade.new()):
            facade.cond(flag, then, other)
