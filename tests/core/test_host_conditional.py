"""Conditional nodes of the host: sampled once, nested, refused where CUDA refuses them."""

from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core.errors import (
    ArgumentError,
    CaptureInvalidated,
    OperationRefused,
    PredicateError,
)
from tensorplay_core.protocols import ConditionalKind

from .host_work import IF, SWITCH, WHILE, flag, put


@pytest.mark.parametrize("value", [True, False])
def test_if_and_else_run_one_body_each_replay(host: Any, value: bool) -> None:
    ran: list[str] = []
    pred = flag(host)
    with host.capture() as captured:
        then, other = host.runtime.conditional_open(captured.capture, IF, pred, 2)
        with host.body(then):
            host.driver.launch(ran.append, "then")
        with host.body(other):
            host.driver.launch(ran.append, "else")
        host.driver.launch(ran.append, "after")
    launch = host.executable(captured).launch
    for now in (value, not value, value):
        pred[0] = now
        ran.clear()
        launch()
        assert ran == ["then" if now else "else", "after"]


def test_a_branch_that_rewrites_the_predicate_does_not_run_the_other(host: Any) -> None:
    ran: list[str] = []
    pred = flag(host)
    with host.capture() as captured:
        bodies = host.runtime.conditional_open(captured.capture, IF, pred, 2)
        for body, name in zip(bodies, ("then", "else"), strict=True):
            with host.body(body):
                host.driver.launch(ran.append, name)
                host.driver.submit(put(pred, name == "else"), name="flip", writes=(pred,))
    launch = host.executable(captured).launch
    launch()
    launch()
    launch()
    assert ran == ["then", "else", "then"]


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 3, 2**31 - 1])
@pytest.mark.parametrize("typecode", ["i", "I", "q", "Q"])
def test_a_switch_runs_its_case_or_nothing(host: Any, index: int, typecode: str) -> None:
    if index < 0 and typecode.isupper():
        index = 2**32 - 1
    ran: list[int] = []
    chosen = host.driver.buffer([index], typecode)
    with host.capture() as captured:
        bodies = host.runtime.conditional_open(captured.capture, SWITCH, chosen, 3)
        for number in (2, 0):  # In any order, and one of them not at all.
            with host.body(bodies[number]):
                host.driver.launch(ran.append, number)
    host.executable(captured).launch()
    assert ran == ([index] if index in (0, 2) else [])


def test_callables_serve_as_predicates(host: Any) -> None:
    ran: list[str] = []
    remaining = [3]

    def more() -> bool:
        return remaining[0] > 0

    def step() -> None:
        remaining[0] -= 1
        ran.append("step")

    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(captured.capture, WHILE, more, 1)
        with host.body(body):
            host.driver.submit(step, name="step")
        (then,) = host.runtime.conditional_open(captured.capture, IF, more, 1)
        with host.body(then):
            host.driver.launch(ran.append, "never")
        bodies = host.runtime.conditional_open(captured.capture, SWITCH, lambda: 1, 2)
        with host.body(bodies[1]):
            host.driver.launch(ran.append, "one")
    assert remaining == [3]
    host.executable(captured).launch()
    assert ran == ["step"] * 3 + ["one"]
    assert host.runtime.conditional_read(more) == 0


def test_memory_of_a_body_comes_from_the_pool_of_the_capture(host: Any) -> None:
    with host.capture() as captured:
        pred = flag(host)
        (body,) = host.runtime.conditional_open(captured.capture, IF, pred, 1)
        with host.body(body):
            made = host.driver.buffer(16)
            host.driver.memset(made, 2)
        again = host.driver.buffer(16)
        host.driver.copy(again, made)
    assert host.runtime.pool_statistics(host.pool).allocation_count == 3
    host.executable(captured).launch()
    assert again.tolist() == [2.0] * 16


def test_a_predicate_born_outside_is_kept(host: Any) -> None:
    ran: list[int] = []
    pred = host.driver.buffer([True], "?")
    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(captured.capture, IF, pred, 1)
        with host.body(body):
            host.driver.launch(ran.append, 1)
    held = host.driver.held_bytes
    del pred
    assert host.driver.held_bytes == held
    host.executable(captured).launch()
    assert ran == [1]


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (IF, lambda d: d.buffer([1], "i")),
        (IF, lambda d: d.buffer([True, False], "?")),
        (IF, lambda d: d.buffer([1.0])),
        (WHILE, lambda d: True),
        (WHILE, lambda d: None),
        (SWITCH, lambda d: d.buffer([True], "?")),
        (SWITCH, lambda d: d.buffer([1], "h")),
        (SWITCH, lambda d: d.buffer([1, 2], "i")),
        (SWITCH, lambda d: 1),
    ],
)
def test_what_is_no_predicate_is_refused_and_the_capture_goes_on(
    host: Any, kind: ConditionalKind, make: Callable[[Any], Any]
) -> None:
    predicate = make(host.driver)
    with host.capture() as captured, pytest.raises(PredicateError):
        host.runtime.conditional_open(captured.capture, kind, predicate, 1)
    assert captured.template.node_count == 0


@pytest.mark.parametrize(
    ("kind", "branches", "options"),
    [
        (IF, 0, {}),
        (IF, 3, {}),
        (WHILE, 2, {}),
        (SWITCH, 0, {}),
        (IF, 1, {"first": True}),
        (SWITCH, 1, {"max_steps": 2}),
        (WHILE, 1, {"max_steps": 0}),
    ],
)
def test_bodies_and_options_must_fit_the_kind(
    host: Any, kind: ConditionalKind, branches: int, options: dict[str, Any]
) -> None:
    predicate = host.driver.buffer([0], "i") if kind is SWITCH else flag(host)
    with host.capture() as captured, pytest.raises(ArgumentError, match="bodies"):
        host.runtime.conditional_open(captured.capture, kind, predicate, branches, **options)


def test_reading_a_predicate_waits_and_so_is_refused_in_a_capture(host: Any) -> None:
    read = host.runtime.conditional_read
    assert read(flag(host)) == 1
    assert read(host.driver.buffer([7], "q")) == 7
    for wrong in (host.driver.buffer([1.0]), host.driver.buffer([1, 2], "i"), True, None):
        with pytest.raises(PredicateError):
            read(wrong)
    pred = flag(host)
    capture = host.begin()
    with pytest.raises(OperationRefused):
        read(pred)
    host.runtime.graph_abort(capture, None)


def test_conditionals_work_in_an_adopted_capture(host: Any) -> None:
    runtime, driver, ran = host.runtime, host.driver, []
    stream = driver.stream()
    stream.begin_capture()
    capture = runtime.graph_adopt(stream, "somebody")
    (body,) = runtime.conditional_open(capture, IF, flag(host), 1)
    with host.body(body):
        driver.launch(ran.append, 1)
    assert driver.current.handle == 0
    runtime.graph_instantiate(stream.end_capture()).launch()
    assert ran == [1]
    stream.begin_capture()
    capture = runtime.graph_adopt(stream, "somebody")
    (body,) = runtime.conditional_open(capture, IF, flag(host), 1)
    runtime.conditional_enter(body)
    runtime.graph_abort(capture, KeyError())
    assert stream.capturing
    with pytest.raises(CaptureInvalidated):
        stream.end_capture()
    assert not stream.capturing
