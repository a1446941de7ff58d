"""Conditional nodes of the host: sampled once, nested, bounded, refused where they would hang."""

from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core.errors import (
    ArgumentError,
    CaptureInvalidated,
    ConditionalError,
    LoopLimitExceeded,
    OperationRefused,
    PredicateError,
    UnjoinedWork,
)
from tensorplay_core.protocols import ConditionalKind

IF, WHILE, SWITCH = ConditionalKind.IF, ConditionalKind.WHILE, ConditionalKind.SWITCH


def nothing() -> None:
    pass


def flag(host: Any, value: bool = True) -> Any:
    return host.driver.buffer([value], "?")


def put(buffer: Any, value: Any) -> Callable[[], None]:
    memory = buffer.memory

    def write() -> None:
        memory[0] = value

    return write


def count_down(host: Any, counter: Any, out: Any) -> None:
    """Work: ``counter -= 1; out = counter > 0``."""

    def step(counter: Any, out: Any) -> None:
        counter.memory[0] -= 1
        out.memory[0] = counter.memory[0] > 0

    host.driver.launch(step, counter, out, writes=(counter, out))


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


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_while_samples_before_each_run(host: Any, steps: int, explicit: bool) -> None:
    driver, ran = host.driver, []
    counter, pred = driver.buffer([steps], "i"), flag(host, steps > 0)
    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(captured.capture, WHILE, pred, 1)
        with host.body(body):
            driver.launch(ran.append, 1)
            count_down(host, counter, pred)
            if explicit:
                host.runtime.conditional_set(body, pred)
    executable = host.executable(captured)
    executable.launch()
    assert len(ran) == steps
    counter[0], pred[0] = 3, True
    executable.launch()
    assert len(ran) == steps + 3
    body_nodes = host.runtime.graph_topology(captured.template).nodes[0].bodies[0].topology.nodes
    assert [node.name for node in body_nodes] == ["append", "step", "set condition"]


@pytest.mark.parametrize(
    ("value", "first", "most", "runs"),
    [
        (True, False, 3, 3),
        (False, False, 3, 0),
        (False, True, 3, 1),
        (True, True, 1, 1),
        (True, True, 3, 3),
    ],
)
def test_first_and_max_steps_bound_a_constant_loop(
    host: Any, value: bool, first: bool, most: int, runs: int
) -> None:
    ran: list[int] = []
    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(
            captured.capture, WHILE, flag(host, value), 1, first=first, max_steps=most
        )
        with host.body(body):
            host.driver.launch(ran.append, 1)
    launch = host.executable(captured).launch
    launch()
    launch()
    assert len(ran) == 2 * runs


def test_the_last_sample_decides_and_may_be_of_another_predicate(host: Any) -> None:
    ran: list[int] = []
    go, stop = flag(host), flag(host, False)
    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(captured.capture, WHILE, go, 1)
        with host.body(body):
            host.runtime.conditional_set(body, go)
            host.driver.launch(ran.append, 1)
            host.runtime.conditional_set(body, stop)
    host.executable(captured).launch()
    assert ran == [1]


def test_work_after_a_sample_makes_the_exit_sample_again(host: Any) -> None:
    driver = host.driver
    counter, pred = driver.buffer([3], "i"), flag(host)
    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(captured.capture, WHILE, pred, 1)
        with host.body(body):
            host.runtime.conditional_set(body, flag(host, True))
            count_down(host, counter, pred)
    host.executable(captured).launch()
    assert counter[0] == 0


def _write(host: Any, pred: Any, how: str) -> None:
    driver = host.driver
    match how:
        case "copy":
            driver.copy(pred, flag(host, False))
        case "memset":
            driver.memset(pred, 0)
        case "declared":
            driver.submit(put(pred, False), name="clear", writes=(pred,))
        case "overlapping memory":
            driver.submit(put(pred, False), name="clear", writes=(pred.memory,))


@pytest.mark.parametrize("how", ["copy", "memset", "declared", "overlapping memory"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_body_that_writes_its_predicate_is_known_by_it(host: Any, how: str, nested: bool) -> None:
    driver, ran, pred = host.driver, [], flag(host)
    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(captured.capture, WHILE, pred, 1)
        with host.body(body):
            driver.launch(ran.append, 1)
            if nested:
                (inner,) = host.runtime.conditional_open(body, IF, flag(host), 1)
                with host.body(inner):
                    _write(host, pred, how)
            else:
                _write(host, pred, how)
    host.executable(captured).launch()
    assert ran == [1]


def test_a_body_that_cannot_end_its_loop_is_refused_with_the_place(host: Any) -> None:
    pred = flag(host)
    capture = host.begin()
    with pytest.raises(ConditionalError, match="writes="):
        (body,) = host.runtime.conditional_open(capture, WHILE, pred, 1)
        host.runtime.conditional_enter(body)
        host.driver.memset(flag(host), 0)
        host.driver.submit(put(pred, False), name="undeclared")
        host.runtime.conditional_exit(body)
    assert host.driver.current.handle == capture.stream
    with pytest.raises(CaptureInvalidated, match="body of a while node") as caught:
        host.runtime.graph_end(capture)
    assert isinstance(caught.value.__cause__, ConditionalError)
    assert host.driver.current.handle == 0


def test_a_runaway_loop_is_stopped_by_the_drivers_cap(host: Any) -> None:
    ran: list[int] = []
    host.driver.loop_limit = 10
    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(captured.capture, WHILE, lambda: True, 1)
        with host.body(body):
            host.driver.launch(ran.append, 1)
    executable = host.executable(captured)
    with pytest.raises(LoopLimitExceeded, match="ran 10 times") as caught:
        executable.launch()
    assert __file__ in str(caught.value)
    assert len(ran) == 10
    host.driver.loop_limit = 3
    with pytest.raises(LoopLimitExceeded, match="ran 3 times"):
        executable.launch()


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


def test_loops_nest_and_each_has_its_own_state(host: Any) -> None:
    driver, ran = host.driver, []
    outer_count, outer = driver.buffer([3], "i"), flag(host)
    inner_count, inner = driver.buffer([0], "i"), flag(host)
    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(captured.capture, WHILE, outer, 1)
        with host.body(body):
            driver.memset(inner_count, 2)
            driver.memset(inner, 1)
            (nested,) = host.runtime.conditional_open(body, WHILE, inner, 1)
            with host.body(nested):
                driver.launch(ran.append, 1)
                count_down(host, inner_count, inner)
            count_down(host, outer_count, outer)
    executable, second = host.executable(captured), host.executable(captured)
    executable.launch()
    assert len(ran) == 6
    outer_count[0], outer[0] = 1, True
    second.launch()
    assert len(ran) == 8


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


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("sibling", [False, True])
def test_a_loop_does_not_reuse_what_its_next_run_reads(
    host: Any, depth: int, sibling: bool
) -> None:
    driver, runtime = host.driver, host.runtime
    total, source = driver.buffer([0.0] * 16), driver.buffer([1.0] * 16)

    def add(total: Any, values: Any) -> None:
        total.memory[0] += values.memory[0]

    def enter(capture: Any) -> Any:
        (body,) = runtime.conditional_open(capture, WHILE, flag(host), 1, max_steps=2)
        runtime.conditional_enter(body)
        return body

    with host.capture() as captured:
        if sibling:  # Made in a loop that is over by now.
            before = enter(captured.capture)
        read = driver.buffer(16)
        driver.copy(read, source)
        if sibling:
            runtime.conditional_exit(before)
        bodies = [enter(captured.capture)]
        if depth == 2:
            bodies.append(enter(bodies[0]))
        driver.launch(add, total, read, writes=(total,))
        del read
        again = driver.buffer(16)
        driver.memset(again, 100.0)
        del again
        inner = driver.buffer(16)  # What a loop made it may reuse.
        while bodies:
            runtime.conditional_exit(bodies.pop())
        outer = driver.buffer(16)
    found = runtime.pool_statistics(host.pool)
    assert (found.reserved_bytes, found.allocation_count) == (depth * 64 + 128, 2)
    assert inner is not outer
    host.executable(captured).launch()
    assert total[0] == 2.0**depth


def test_a_loop_keeps_its_predicate_in_use_until_its_end(host: Any) -> None:
    with host.capture() as captured:
        pred = flag(host)
        (body,) = host.runtime.conditional_open(captured.capture, WHILE, pred, 1, max_steps=9)
        del pred
        with host.body(body):
            host.driver.memset(host.driver.buffer(16, "?"), 0)
        assert host.runtime.pool_statistics(host.pool).allocation_count == 0
    ran: list[int] = []
    host.driver.loop_limit = 100
    with host.capture() as captured:
        pred = flag(host)
        (body,) = host.runtime.conditional_open(captured.capture, WHILE, pred, 1, max_steps=3)
        del pred
        with host.body(body):
            host.driver.launch(ran.append, 1)
            host.driver.memset(host.driver.buffer(1, "?"), 0)
    host.executable(captured).launch()
    assert ran == [1] * 3


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


def test_bodies_are_entered_once_in_order_and_left_innermost_first(host: Any) -> None:
    runtime, known = host.runtime, flag(host)
    with host.capture() as captured:
        capture = captured.capture
        then, other = runtime.conditional_open(capture, IF, known, 2)
        assert then.parent is capture
        assert len({then.stream, other.stream, capture.stream}) == 3
        for call in (
            lambda: runtime.conditional_exit(then),
            lambda: runtime.conditional_enter(capture),
            lambda: runtime.conditional_exit(capture),
            lambda: runtime.conditional_open(then, IF, known, 1),
            lambda: runtime.conditional_set(then, known),
            lambda: runtime.conditional_set(capture, known),
        ):
            with pytest.raises(ConditionalError):
                call()
        runtime.conditional_enter(then)
        assert runtime.current_stream("host") == then.stream
        (inner,) = runtime.conditional_open(then, IF, known, 1)
        runtime.conditional_enter(inner)
        for call in (
            lambda: runtime.conditional_enter(other),
            lambda: runtime.conditional_exit(then),
            lambda: runtime.conditional_set(then, known),
        ):
            with pytest.raises(ConditionalError):
                call()
        runtime.conditional_exit(inner)
        assert runtime.current_stream("host") == then.stream
        runtime.conditional_exit(then)
        assert runtime.current_stream("host") == capture.stream
        for call in (
            lambda: runtime.conditional_exit(then),
            lambda: runtime.conditional_enter(then),
            lambda: runtime.conditional_open(then, IF, known, 1),
        ):
            with pytest.raises(ConditionalError):
                call()
    with pytest.raises(ConditionalError):
        runtime.conditional_enter(other)
    with pytest.raises(ConditionalError):
        runtime.conditional_open(capture, IF, known, 1)


def test_a_node_stands_on_the_stream_that_was_current(host: Any) -> None:
    driver = host.driver
    with host.capture() as captured:
        driver.submit(nothing, name="0")
        side = driver.stream()
        side.wait_stream(driver.current)
        driver.submit(nothing, name="1")
        with driver.using(side):
            driver.submit(nothing, name="2")
            (body,) = host.runtime.conditional_open(captured.capture, IF, flag(host), 1)
            with host.body(body):
                driver.submit(nothing, name="in")
            assert driver.current is side
        driver.current.wait_stream(side)
        driver.submit(nothing, name="4")
    edges = host.runtime.graph_topology(captured.template).edges
    # The two flags are made outside, by then: no node of theirs.
    assert edges == ((0, 1), (0, 2), (2, 3), (3, 4), (1, 5), (4, 5))


@pytest.mark.parametrize("kind", ["host", "event_record", "event_wait", "alloc", "free"])
def test_a_body_holds_only_what_cuda_lets_it(host: Any, kind: str) -> None:
    capture = host.begin()
    host.driver.submit(nothing, name="outside", kind=kind)
    (body,) = host.runtime.conditional_open(capture, IF, flag(host), 1)
    host.runtime.conditional_enter(body)
    with pytest.raises(OperationRefused, match=kind):
        host.driver.submit(nothing, name="inside", kind=kind)
    host.runtime.graph_abort(capture, None)


def test_forks_of_a_body_are_joined_inside_it(host: Any) -> None:
    driver, ran = host.driver, []
    side = driver.stream("scout")
    with host.capture() as captured:
        (body,) = host.runtime.conditional_open(captured.capture, IF, flag(host), 1)
        with host.body(body):
            side.wait_stream(driver.current)
            with driver.using(side):
                driver.launch(ran.append, 1)
            driver.current.wait_stream(side)
    host.executable(captured).launch()
    assert ran == [1]
    capture = host.begin()
    (body,) = host.runtime.conditional_open(capture, IF, flag(host), 1)
    host.runtime.conditional_enter(body)
    side.wait_stream(driver.current)
    with pytest.raises(UnjoinedWork, match="scout"):
        host.runtime.conditional_exit(body)
    assert driver.current.handle == capture.stream
    with pytest.raises(CaptureInvalidated):
        host.runtime.graph_end(capture)


def test_a_body_does_not_wait_for_its_parent(host: Any) -> None:
    driver = host.driver
    capture = host.begin()
    parent = driver.current
    (body,) = host.runtime.conditional_open(capture, IF, flag(host), 1)
    host.runtime.conditional_enter(body)
    with pytest.raises(OperationRefused, match="merge"):
        driver.current.wait_stream(parent)
    with pytest.raises(CaptureInvalidated):
        host.runtime.conditional_exit(body)
    with pytest.raises(CaptureInvalidated, match="wait_stream"):
        host.runtime.graph_end(capture)


def test_an_illegal_call_in_a_body_breaks_the_whole(host: Any) -> None:
    capture = host.begin()
    (body,) = host.runtime.conditional_open(capture, IF, flag(host), 1)
    host.runtime.conditional_enter(body)
    with pytest.raises(OperationRefused):
        host.driver.current.synchronize()
    for call in (
        lambda: host.driver.submit(nothing, name="work"),
        lambda: host.runtime.conditional_open(body, IF, flag(host), 1),
        lambda: host.runtime.conditional_exit(body),
        lambda: host.driver.submit(nothing, name="work"),
        lambda: host.runtime.graph_end(capture),
    ):
        with pytest.raises(CaptureInvalidated, match="synchronize"):
            call()
    assert host.driver.current.handle == 0


@pytest.mark.parametrize("how", ["abort", "end"])
def test_a_capture_that_is_over_takes_its_open_bodies_with_it(host: Any, how: str) -> None:
    runtime = host.runtime
    capture = host.begin()
    (body,) = runtime.conditional_open(capture, IF, flag(host), 1)
    runtime.conditional_enter(body)
    (inner,) = runtime.conditional_open(body, IF, flag(host), 1)
    runtime.conditional_enter(inner)
    if how == "abort":
        runtime.graph_abort(capture, KeyError())
    else:
        with pytest.raises(ConditionalError, match="still open"):
            runtime.graph_end(capture)
    assert host.driver.current.handle == 0
    assert not runtime.graph_capturing("host")
    with host.capture():
        host.driver.submit(nothing, name="the next capture works")


def test_a_body_given_up_breaks_its_capture(host: Any) -> None:
    runtime = host.runtime
    capture = host.begin()
    (body,) = runtime.conditional_open(capture, IF, flag(host), 1)
    runtime.conditional_enter(body)
    runtime.graph_abort(body, KeyError("user"))
    assert runtime.current_stream("host") == capture.stream
    with pytest.raises(CaptureInvalidated, match="KeyError"):
        runtime.graph_end(capture)


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
