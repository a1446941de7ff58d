"""Of conditionals misused: bodies out of order, predicates of the wrong kind, failing bodies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core.errors import (
    ArgumentError,
    ConditionalError,
    GraphStateError,
    PredicateError,
)
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import four_parts, refused, unchanged

pytestmark = pytest.mark.needs(
    "conditional_open", "conditional_enter", "conditional_set", "conditional_exit"
)


@pytest.mark.parametrize("kind", ["if_then", "if_else", "while_loop", "switch"])
def test_a_predicate_of_the_wrong_kind_is_refused(
    workbench: Workbench, facade: Facade, kind: str
) -> None:
    wrong = [True, 1, None, "p", workbench.buffer([1.0]), workbench.buffer([1.0, 0.0])]
    wrong.append(workbench.flag(True) if kind == "switch" else workbench.index(1))
    extra = (2,) if kind == "switch" else ()
    total = workbench.buffer([0.0])
    for predicate in wrong:
        made = facade.new()
        with refused(facade, PredicateError), facade.capture(made):
            workbench.add_(total, 1.0)
            with getattr(made, kind)(predicate, *extra):
                pytest.fail("the body was opened")


def test_a_condition_of_the_wrong_kind_is_refused(workbench: Workbench, facade: Facade) -> None:
    count, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with refused(facade, PredicateError), facade.capture(made), made.while_loop(flag) as loop:
        workbench.add_(count, 1.0)
        loop.condition(count)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_counts_are_positive_integers(workbench: Workbench, facade: Facade, value: Any) -> None:
    flag, index = workbench.flag(True), workbench.index(0)
    works: tuple[Callable[[Any], Any], ...] = (
        lambda made: made.while_loop(flag, max_steps=value),
        lambda made: made.switch(index, value),
    )
    for work in works:
        made = facade.new()
        with refused(facade, ArgumentError), facade.capture(made), work(made):
            pytest.fail("the body was opened")


def test_an_unclosed_body_is_refused_at_the_end(workbench: Workbench, facade: Facade) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with refused(facade, ConditionalError), facade.capture(made):
        made.begin_capture_to_if_node(flag)
        workbench.add_(total, 1.0)
    assert workbench.read(total) == [0.0]


def test_unclosed_bodies_are_refused_at_any_depth(workbench: Workbench, facade: Facade) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with refused(facade, ConditionalError):
        made.capture_begin()
        made.begin_capture_to_if_node(flag)
        made.begin_capture_to_while_node(flag)
        made.begin_capture_to_if_node(flag)
        workbench.add_(total, 1.0)
        made.capture_end()


def test_a_body_is_entered_once(workbench: Workbench, facade: Facade) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with refused(facade, ConditionalError), facade.capture(made), made.if_else(flag) as (then, _):
        with then:
            workbench.add_(total, 1.0)
        with then:
            workbench.add_(total, 1.0)


def test_a_body_is_not_entered_inside_its_sibling(workbench: Workbench, facade: Facade) -> None:
    flag, made = workbench.flag(True), facade.new()
    with (
        refused(facade, ConditionalError),
        facade.capture(made),
        made.if_else(flag) as (then, other),
        then,
        other,
    ):
        pytest.fail("the second body was entered")


@pytest.mark.parametrize("place", ["before the first", "between"])
def test_work_between_a_node_and_its_bodies_is_refused(
    workbench: Workbench, facade: Facade, place: str
) -> None:
    x, total, flag = workbench.buffer([1.0]), workbench.buffer([0.0]), workbench.flag(True)
    made = facade.new()
    with refused(facade, ConditionalError), facade.capture(made), made.if_else(flag) as bodies:
        if place == "before the first":
            workbench.add_(x, 1.0)
        with bodies[0]:
            workbench.add_(total, x)
        if place == "between":
            workbench.add_(x, 1.0)
        with bodies[1]:
            workbench.add_(total, x)
    assert [workbench.read(one) for one in (x, total)] == [[1.0], [0.0]]


def test_work_on_the_parents_stream_inside_a_body_is_refused(
    workbench: Workbench, facade: Facade
) -> None:
    x, total, flag = workbench.buffer([1.0]), workbench.buffer([0.0]), workbench.flag(True)
    made, stream = facade.new(), workbench.stream()
    with (
        refused(facade, ConditionalError),
        facade.capture(made, None, stream=stream),
        made.while_loop(flag, max_steps=2),
    ):
        workbench.add_(total, x)
        with workbench.on(stream):
            workbench.add_(x, 1.0)
    assert [workbench.read(one) for one in (x, total)] == [[1.0], [0.0]]


def test_the_capture_is_lost_with_a_body_that_could_not_be_entered(
    workbench: Workbench, facade: Facade
) -> None:
    x, total, flag = workbench.buffer([1.0]), workbench.buffer([0.0]), workbench.flag(True)
    made = facade.new()
    with refused(facade, ConditionalError), facade.capture(made):
        with made.if_else(flag) as (then, _):
            workbench.add_(x, 1.0)
            with contextlib.suppress(ConditionalError), then:
                workbench.add_(total, x)
        workbench.add_(total, x)
    assert workbench.read(total) == [0.0]


def test_work_after_the_bodies_comes_after_them(workbench: Workbench, facade: Facade) -> None:
    x, total, flag = workbench.buffer([1.0]), workbench.buffer([0.0]), workbench.flag(True)
    made = facade.new()
    with facade.capture(made), made.if_else(flag) as (then, other):
        with then:
            workbench.add_(total, x)
        with other:
            workbench.add_(total, 100.0)
        workbench.add_(x, 1.0)
    made.replay()
    assert [workbench.read(one) for one in (x, total)] == [[2.0], [1.0]]


def test_a_body_is_not_entered_after_the_capture(workbench: Workbench, facade: Facade) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with facade.capture(made):
        workbench.add_(total, 1.0)
        with made.if_else(flag) as (_, other):
            pass
    with refused(facade, GraphStateError), other:
        pytest.fail("the body was entered")
    made.replay()
    assert workbench.read(total) == [1.0]


def test_closing_what_is_not_open_is_refused(workbench: Workbench, facade: Facade) -> None:
    total, flag = workbench.buffer([0.0]), workbench.flag(True)
    works: tuple[Callable[[Any], None], ...] = (
        lambda made: made.end_capture_to_conditional_node(),
        lambda made: made.set_conditional_handle_for_current_node(flag),
    )
    for work in works:
        made = facade.new()
        with refused(facade, ConditionalError), facade.capture(made):
            workbench.add_(total, 1.0)
            work(made)


def test_an_if_takes_no_condition(workbench: Workbench, facade: Facade) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with refused(facade, ConditionalError), facade.capture(made), made.if_then(flag):
        workbench.add_(total, 1.0)
        made.set_conditional_handle_for_current_node(flag)


def test_the_condition_of_an_outer_loop_is_not_set_from_an_inner_body(
    workbench: Workbench, facade: Facade
) -> None:
    flag, made = workbench.flag(True), facade.new()
    with (
        refused(facade, ConditionalError),
        facade.capture(made),
        made.while_loop(flag) as loop,
        made.if_then(flag),
    ):
        loop.condition(flag)


def test_conditionals_outside_a_capture_are_refused(workbench: Workbench, facade: Facade) -> None:
    flag, made = workbench.flag(True), facade.new()
    for work in (
        lambda: made.if_then(flag).__enter__(),
        lambda: made.while_loop(flag).__enter__(),
        lambda: made.begin_capture_to_if_node(flag),
        lambda: made.begin_capture_to_while_node(flag),
    ):
        with refused(facade, GraphStateError):
            work()


def test_a_failed_body_cannot_be_gone_on_from(workbench: Workbench, facade: Facade) -> None:
    total, flag, made = workbench.buffer([0.0]), workbench.flag(True), facade.new()
    with refused(facade, ConditionalError) as caught, facade.capture(made):
        try:
            with made.if_then(flag):
                workbench.add_(total, 1.0)
                raise KeyError("swallowed")
        except KeyError:
            workbench.add_(total, 1.0)
    assert isinstance(caught.value.__cause__, KeyError)
    assert workbench.read(total) == [0.0]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["if", "while", "switch"])
def test_a_body_that_fails_at_any_depth_leaves_no_trace(
    workbench: Workbench, facade: Facade, kind: str, depth: int
) -> None:
    total, flag, index = workbench.buffer([0.0]), workbench.flag(True), workbench.index(0)
    error, made = KeyError("the user's own"), facade.new()

    def nest(level: int) -> None:
        workbench.add_(total, 1.0)
        if level == depth:
            raise error
        if kind == "if":
            with made.if_then(flag):
                nest(level + 1)
        elif kind == "while":
            with made.while_loop(flag):
                nest(level + 1)
        else:
            with made.switch(index, 1) as (case,), case:
                nest(level + 1)

    with unchanged(facade), pytest.raises(KeyError) as caught, facade.capture(made):
        nest(0)
    assert caught.value is error
    assert workbench.read(total) == [0.0]
    with facade.capture(made), made.if_then(flag):
        workbench.add_(total, 1.0)
    made.replay()
    assert workbench.read(total) == [1.0]


def test_cond_refuses_what_it_cannot_read(workbench: Workbench, facade: Facade) -> None:
    x = workbench.buffer([1.0, 2.0])
    with pytest.raises(PredicateError) as caught:
        facade.cond(x, lambda: x, lambda: x)
    four_parts(caught.value)
