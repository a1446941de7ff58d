"""Executables of the host: launched from anywhere, one at a time, closed."""

import gc
import sys
import threading
import weakref
from typing import Any

import pytest

from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    GraphStateError,
    StaleGraph,
)
from tensorplay_core.protocols import ConditionalKind, Executable, Template, WorkQueue

from .host_work import nothing, recorder


def test_the_driver_is_a_work_queue_and_gives_what_the_contract_asks(host: Any) -> None:
    queue: WorkQueue = host.driver
    assert queue is host.driver
    _, captured = recorder(host, "a", "b")
    template: Template = captured.template
    executable: Executable = host.executable(captured)
    assert template.node_count == 2
    assert len(template.raw().nodes) == 2
    assert executable.raw() == executable.launch


def test_work_replays_in_the_order_of_submission_on_any_stream(host: Any) -> None:
    ran, captured = recorder(host, "a", "b", "c")
    executable = host.executable(captured)
    stream = host.driver.stream()
    for where in (None, stream, stream.handle, 0):
        executable.upload(where)
        executable.launch(where)
    executable.launch()
    assert ran == ["a", "b", "c"] * 5
    for call in (executable.launch, executable.upload):
        with pytest.raises(ArgumentTypeError):
            call("a stream")
        with pytest.raises(ArgumentError):
            call(10**9)


def test_a_replay_calls_the_work_and_no_other_python(host: Any) -> None:
    def work() -> None:
        pass

    buffer, other = host.driver.buffer([1.0]), host.driver.buffer([2.0])
    with host.capture() as captured:
        for _ in range(50):
            host.driver.submit(work, name="work")
            host.driver.copy(buffer, other)
            host.driver.memset(other, 1.0)
    launch = host.executable(captured).launch
    called: list[str] = []
    sys.setprofile(
        lambda frame, event, arg: event == "call" and called.append(frame.f_code.co_name)
    )
    try:
        launch()
    finally:
        sys.setprofile(None)
    assert called == ["launch", *["work"] * 50]


def test_one_executable_is_never_in_two_threads_at_once(host: Any) -> None:
    inside: list[int] = []
    met: list[int] = []
    waiting = threading.Event()

    def work() -> None:
        inside.append(1)
        waiting.wait(0.01)
        met.append(len(inside))
        inside.pop()

    with host.capture() as captured:
        host.driver.submit(work, name="work")
    launch = host.executable(captured).launch
    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [1] * 4


def test_an_exception_of_the_work_comes_through_with_the_node_it_came_from(host: Any) -> None:
    flag = host.driver.buffer([True], "?")

    def fail() -> None:
        raise KeyError("lost")

    with host.capture() as captured:
        host.driver.submit(nothing, name="first")
        (body,) = host.runtime.conditional_open(captured.capture, ConditionalKind.IF, flag, 1)
        with host.body(body):
            host.driver.submit(nothing, name="second")
            host.driver.submit(fail, name="third")
        host.driver.submit(nothing, name="fourth")
    executable = host.executable(captured)
    for _ in range(2):
        with pytest.raises(KeyError, match="lost") as caught:
            executable.launch()
        assert caught.value.__notes__ == [
            "while replaying node 1 (third)",
            "while replaying node 1 (if)",
        ]
    flag[0] = False
    executable.launch()


def test_close_reaches_launches_taken_out_before_and_is_idempotent(host: Any) -> None:
    ran, captured = recorder(host, "a")
    executable = host.executable(captured)
    launch = executable.launch
    executable.close()
    executable.close()
    with pytest.raises(GraphStateError, match="closed"):
        launch()
    assert ran == []


def test_a_closed_template_is_empty_and_its_executables_stay_whole(host: Any) -> None:
    ran, captured = recorder(host, "a")
    executable = host.executable(captured)
    captured.template.close()
    captured.template.close()
    for use in (
        captured.template.raw,
        lambda: host.executable(captured),
        lambda: host.runtime.graph_topology(captured.template),
        lambda: host.runtime.graph_update(executable, captured.template),
    ):
        with pytest.raises(GraphStateError, match="closed"):
            use()
    executable.launch()
    assert ran == ["a"]


@pytest.mark.parametrize("close", [True, False])
def test_everything_is_let_go_without_a_collection(host: Any, close: bool) -> None:
    class Operand:
        pass

    flag = host.driver.buffer([False], "?")
    owned = [Operand() for _ in range(3)]
    refs = [weakref.ref(one) for one in owned]
    gc.disable()
    try:
        with host.capture() as captured:
            host.driver.submit(nothing, name="work", keep=owned[0])
            (body,) = host.runtime.conditional_open(
                captured.capture, ConditionalKind.WHILE, flag, 1
            )
            with host.body(body):
                host.driver.launch(id, owned[1])
                host.runtime.conditional_set(body, flag)
        captured.template.retain(owned[2])
        executable = host.executable(captured)
        launch = executable.launch
        del owned, captured, body
        assert all(ref() is not None for ref in refs)
        launch()
        if close:
            executable.close()
        else:
            del executable, launch
        assert all(ref() is None for ref in refs)
    finally:
        gc.enable()


def test_watched_inputs_that_die_make_the_graph_stale(host: Any) -> None:
    driver = host.driver
    out = driver.buffer(2)
    source, other = driver.buffer([1.0, 2.0]), driver.buffer([5.0])
    with host.capture(check_input_liveness=True) as captured:
        driver.copy(out, source)
        driver.launch(id, other)
        driver.launch(id, source[1:])
    executable = host.executable(captured)
    executable.launch()
    assert out.tolist() == [1.0, 2.0]
    out[0] = 0.0
    del source
    with pytest.raises(StaleGraph, match=r"1 of its inputs died.*float32\[2\]") as caught:
        executable.launch()
    assert __file__ in str(caught.value)
    assert out.tolist() == [0.0, 2.0]
