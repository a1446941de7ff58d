"""While nodes of the host: sampled before each run, bounded, refused where they would hang."""

from typing import Any

import pytest

from tensorplay_core.errors import (
    CaptureInvalidated,
    ConditionalError,
    LoopLimitExceeded,
)

from .host_work import IF, WHILE, flag, put


def count_down(host: Any, counter: Any, out: Any) -> None:
    """Work: ``counter -= 1; out = counter > 0``."""

    def step(counter: Any, out: Any) -> None:
        counter.memory[0] -= 1
        out.memory[0] = counter.memory[0] > 0

    host.driver.launch(step, counter, out, writes=(counter, out))


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
    with pytest.raises(LoopLimitExceeded, match="ran 10 times, the cap of") as caught:
        executable.launch()
    assert __file__ in caught.value.subject
    assert "loop_limit" in caught.value.met
    assert len(ran) == 10
    host.driver.loop_limit = 3
    with pytest.raises(LoopLimitExceeded, match="ran 3 times"):
        executable.launch()


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
