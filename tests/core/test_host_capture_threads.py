"""Captures of the host beside other threads: what breaks them, what does not, who is named."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core.errors import (
    CaptureInvalidated,
    OperationRefused,
)

from .host_work import in_a_thread, nothing

UNSAFE: dict[str, Callable[[Any, Any], object]] = {
    "device": lambda driver, b: driver.synchronize(),
    "stream": lambda driver, b: driver.current.synchronize(),
    "event": lambda driver, b: driver.event().query(),
    "read": lambda driver, b: b[0],
}


@pytest.mark.parametrize("call", UNSAFE)
def test_a_global_capture_is_broken_by_another_thread(host: Any, call: str) -> None:
    buffer = host.driver.buffer([1.0])
    capture = host.begin("global")
    with pytest.raises(OperationRefused, match="global mode in thread"):
        in_a_thread(lambda: UNSAFE[call](host.driver, buffer))
    with pytest.raises(CaptureInvalidated, match="thread_local") as caught:
        host.runtime.graph_end(capture)
    assert "'meddler'" in str(caught.value)


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
@pytest.mark.parametrize("call", UNSAFE)
def test_other_modes_let_other_threads_wait(host: Any, call: str, mode: str) -> None:
    buffer = host.driver.buffer([1.0])
    with host.capture(mode) as captured:
        in_a_thread(lambda: UNSAFE[call](host.driver, buffer))
        host.driver.submit(nothing, name="work")
    assert captured.template.node_count == 1


def test_a_thread_local_capture_is_broken_on_another_stream_of_its_thread(host: Any) -> None:
    for mode, broken in (("global", True), ("thread_local", True), ("relaxed", False)):
        capture = host.begin(mode)
        with host.driver.using(host.driver.stream()):
            if broken:
                with pytest.raises(OperationRefused, match=mode):
                    host.driver.synchronize()
            else:
                host.driver.synchronize()
        if broken:
            with pytest.raises(CaptureInvalidated):
                host.runtime.graph_end(capture)
        else:
            host.runtime.graph_end(capture)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_another_thread_cannot_wait_for_a_captured_stream(host: Any, mode: str) -> None:
    capture = host.begin(mode)
    stream = host.driver.current
    with pytest.raises(OperationRefused):
        in_a_thread(stream.synchronize)
    with pytest.raises(CaptureInvalidated, match="'meddler'") as caught:
        host.runtime.graph_end(capture)
    assert "thread_local" not in caught.value.remedy  # It would not have helped.


def test_work_on_other_streams_and_in_other_threads_runs_and_may_read(host: Any) -> None:
    driver = host.driver
    buffer, seen = driver.buffer([3.0]), []
    with host.capture() as captured:
        in_a_thread(lambda: driver.launch(lambda b: seen.append(b[0]), buffer))
        with driver.using(driver.stream()):
            driver.launch(lambda b: seen.append(b[0]), buffer)
            driver.submit(lambda: seen.append(buffer[0]), name="closure")
        in_a_thread(lambda: driver.buffer(1000))
    assert seen == [3.0] * 3
    assert captured.template.node_count == 0


def test_a_replay_in_a_thread_may_read_while_another_captures(host: Any) -> None:
    driver, seen = host.driver, []
    buffer = driver.buffer([3.0])
    with host.capture() as captured:
        driver.submit(lambda: seen.append(buffer[0]), name="reads")
    launch = host.executable(captured).launch
    with host.capture():
        in_a_thread(launch)
    assert seen == [3.0]


def test_two_threads_capture_at_once(host: Any) -> None:
    driver = host.driver
    both = threading.Barrier(2)
    counts: dict[str, list[int]] = {"a": [], "b": []}
    launches: dict[str, Callable[[], None]] = {}

    def record(name: str) -> None:
        with host_of(name).capture("global") as captured:
            both.wait()
            for number in range(20):
                driver.launch(counts[name].append, number)
            both.wait()
        launches[name] = host.executable(captured).launch

    def host_of(name: str) -> Any:
        # The helper holds the pool of its last capture, so each thread has one of its own.
        other = type(host)()
        other.runtime, other.driver = host.runtime, host.driver
        return other

    workers = [threading.Thread(target=record, args=(name,)) for name in counts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for name in counts:
        launches[name]()
    assert counts == {"a": list(range(20)), "b": list(range(20))}


def test_work_of_another_thread_on_the_captured_stream_is_recorded(host: Any) -> None:
    ran: list[int] = []
    with host.capture() as captured:
        stream = host.driver.current

        def work() -> None:
            with host.driver.using(stream):
                host.driver.launch(ran.append, 1)

        in_a_thread(work)
    assert ran == []
    assert captured.template.node_count == 1
