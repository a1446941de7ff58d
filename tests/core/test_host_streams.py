"""Streams and events of the host: order, forks and joins, and what a capture forbids of them."""

import threading
from typing import Any

import pytest

from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    CaptureInvalidated,
    OperationRefused,
    UnjoinedWork,
)
from tensorplay_core.protocols import SupportsCudaStream

from .host_work import nothing

HERE = __file__


def edges(host: Any, captured: Any) -> tuple[tuple[int, int], ...]:
    return host.runtime.graph_topology(captured.template).edges


def test_a_stream_speaks_the_cuda_stream_protocol(host: Any) -> None:
    stream = host.driver.stream()
    assert isinstance(stream, SupportsCudaStream)
    version, handle = stream.__cuda_stream__()
    assert version == 0
    assert handle > 0
    assert host.runtime.resolve_stream(stream, "host") == handle
    assert host.runtime.resolve_stream(handle, "host") == handle
    assert host.runtime.resolve_stream(0, "host") == 0


@pytest.mark.parametrize("wrong", ["3", 3.0, None, True, object()])
def test_what_is_no_stream_is_refused(host: Any, wrong: object) -> None:
    with pytest.raises(ArgumentTypeError):
        host.runtime.resolve_stream(wrong, "host")


def test_a_dead_stream_and_one_of_another_driver_are_refused(host: Any) -> None:
    handle = host.driver.stream().handle
    other = type(host)().driver.stream()
    for stream in (handle, other, other.handle):
        with pytest.raises(ArgumentError):
            host.runtime.resolve_stream(stream, "host")


def test_using_nests_and_belongs_to_its_thread(host: Any) -> None:
    first, second = host.driver.stream(), host.driver.stream()
    seen: list[int] = []
    with host.driver.using(first):
        with pytest.raises(KeyError), host.runtime.using_stream(second.handle, "host"):
            assert host.runtime.current_stream("host") == second.handle
            raise KeyError
        worker = threading.Thread(target=lambda: seen.append(host.driver.current.handle))
        worker.start()
        worker.join()
        assert host.driver.current is first
    assert seen == [0]
    assert host.driver.current.handle == 0


def test_each_pool_has_one_side_stream(host: Any) -> None:
    first, second = (host.runtime.pool_create("host") for _ in range(2))
    assert host.runtime.side_stream("host", first) is host.runtime.side_stream("host", first)
    assert host.runtime.side_stream("host", first) is not host.runtime.side_stream("host", second)
    assert host.runtime.side_stream("host", None) is host.runtime.side_stream("host", None)


def test_outside_a_capture_waiting_costs_nothing_and_work_is_done(host: Any) -> None:
    ran: list[int] = []
    stream, event = host.driver.stream(), host.driver.event()
    with host.driver.using(stream):
        host.driver.launch(ran.append, 1)
        event.record()
    host.driver.current.wait_event(event)
    assert event.query()
    event.synchronize()
    stream.synchronize()
    host.driver.synchronize()
    assert ran == [1]


def test_edges_follow_streams_events_forks_and_joins(host: Any) -> None:
    driver = host.driver
    side, event = driver.stream(), driver.event()
    with host.capture() as captured:
        driver.submit(nothing, name="0")
        event.record()
        driver.submit(nothing, name="1")
        side.wait_event(event)
        with driver.using(side):
            assert host.runtime.graph_capturing("host")
            driver.submit(nothing, name="2")
        driver.current.wait_stream(side)
        driver.submit(nothing, name="3")
        driver.submit(nothing, name="4")
    assert edges(host, captured) == ((0, 1), (0, 2), (1, 3), (2, 3), (3, 4))
    assert not side.capturing


def test_a_fork_of_a_fork_is_joined_through_it(host: Any) -> None:
    driver = host.driver
    first, second = driver.stream(), driver.stream()
    with host.capture() as captured:
        driver.submit(nothing, name="0")
        first.wait_stream(driver.current)
        second.wait_stream(first)
        with driver.using(second):
            driver.submit(nothing, name="1")
        first.wait_stream(second)
        driver.current.wait_stream(first)
        driver.submit(nothing, name="2")
    assert edges(host, captured) == ((0, 1), (0, 2), (1, 2))


@pytest.mark.parametrize("late", [False, True])
def test_a_fork_that_is_not_joined_is_refused_by_name_and_place(host: Any, late: bool) -> None:
    driver = host.driver
    side = driver.stream("scout")
    capture = host.begin()
    side.wait_stream(driver.current)
    if late:  # Joined once, and then given more work.
        driver.current.wait_stream(side)
        with driver.using(side):
            driver.submit(nothing, name="late")
    with pytest.raises(UnjoinedWork, match="scout") as caught:
        host.runtime.graph_end(capture)
    assert HERE in str(caught.value)
    assert not side.capturing
    assert host.driver.current.handle == 0
    with host.capture():
        driver.submit(nothing, name="the next capture works")


def test_a_joined_stream_may_wait_again_without_work(host: Any) -> None:
    driver = host.driver
    side = driver.stream()
    with host.capture():
        side.wait_stream(driver.current)
        driver.current.wait_stream(side)
        side.wait_stream(driver.current)


def test_waiting_for_work_outside_the_capture_breaks_it(host: Any) -> None:
    driver = host.driver
    outside, event = driver.stream(), driver.event()
    event.record(outside)
    for wait in (
        lambda: driver.current.wait_event(event),
        lambda: driver.current.wait_event(driver.event()),
        lambda: driver.current.wait_stream(outside),
    ):
        capture = host.begin()
        with pytest.raises(OperationRefused) as caught:
            wait()
        assert caught.value.where.startswith(HERE)
        with pytest.raises(CaptureInvalidated):
            host.runtime.graph_end(capture)


def test_an_event_of_a_capture_that_is_over_stands_for_nothing(host: Any) -> None:
    driver = host.driver
    event, stream = driver.event(), driver.stream()
    with host.capture():
        driver.submit(nothing, name="work")
        event.record()
    with pytest.raises(OperationRefused):
        stream.wait_event(event)
    with pytest.raises(OperationRefused):
        event.query()
    event.record(stream)
    assert event.query()
    stream.wait_event(event)


def test_two_captures_are_never_merged(host: Any) -> None:
    driver = host.driver
    first = host.begin(stream=(one := driver.stream()))
    driver.submit(nothing, name="first")
    second = host.begin(stream=(two := driver.stream()))
    driver.submit(nothing, name="second")
    with pytest.raises(OperationRefused, match="merge"):
        two.wait_stream(one)
    for capture in (second, first):
        with pytest.raises(CaptureInvalidated):
            host.runtime.graph_end(capture)


def test_the_legacy_stream_neither_captures_nor_is_forked(host: Any) -> None:
    driver = host.driver
    legacy = driver.current
    with pytest.raises(CaptureError, match="legacy"):
        host.begin(stream=0)
    with pytest.raises(CaptureError, match="legacy"):
        legacy.begin_capture()
    assert driver.current is legacy
    capture = host.begin()
    with pytest.raises(OperationRefused, match="legacy"):
        legacy.wait_stream(driver.current)
    with pytest.raises(CaptureInvalidated):
        host.runtime.graph_end(capture)


@pytest.mark.parametrize("use", ["submit", "record", "wait", "synchronize", "launch"])
def test_a_captured_blocking_stream_makes_the_legacy_stream_unusable(host: Any, use: str) -> None:
    driver = host.driver
    legacy, stream = driver.current, driver.stream(blocking=True)
    with host.capture() as before:
        driver.submit(nothing, name="work")
    launch = host.executable(before).launch
    capture = host.begin("relaxed", stream=stream)
    with pytest.raises(OperationRefused, match="legacy"), driver.using(legacy):
        match use:
            case "submit":
                driver.submit(nothing, name="work")
            case "record":
                driver.event().record()
            case "wait":
                legacy.wait_stream(driver.stream())
            case "synchronize":
                legacy.synchronize()
            case "launch":
                launch()
    with pytest.raises(CaptureInvalidated):
        host.runtime.graph_end(capture)


def test_a_captured_non_blocking_stream_leaves_the_legacy_stream_alone(host: Any) -> None:
    driver, ran = host.driver, []
    legacy = driver.current
    with host.capture() as captured, driver.using(legacy):
        driver.launch(ran.append, 1)
    assert ran == [1]
    assert captured.template.node_count == 0
