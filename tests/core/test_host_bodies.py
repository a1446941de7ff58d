"""Bodies of conditional nodes on the host: their order, their streams, what breaks them."""

from typing import Any

import pytest

from tensorplay_core.errors import (
    CaptureInvalidated,
    ConditionalError,
    OperationRefused,
    UnjoinedWork,
)

from .host_work import IF, flag, nothing


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
