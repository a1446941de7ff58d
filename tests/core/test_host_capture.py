"""Captures of the host: nothing runs, what CUDA refuses is refused, what broke one is named."""

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    CaptureInvalidated,
    GraphStateError,
    OperationRefused,
    PoolMismatch,
    UnsupportedByDriver,
)

from .host_work import in_a_thread, nothing

HERE = __file__


def test_a_capture_runs_nothing(host: Any) -> None:
    ran: list[object] = []
    with host.capture() as captured:
        host.driver.submit(lambda: ran.append("work"), name="work")
        host.driver.launch(ran.append, "kernel")
    assert ran == []
    launch = host.executable(captured).launch
    launch()
    launch()
    assert ran == ["work", "kernel"] * 2


def test_what_nothing_has_written_is_poison(host: Any) -> None:
    driver = host.driver
    with host.capture():
        floats, doubles = driver.buffer(2, "f"), driver.buffer(1, "d")
        ints, values = driver.buffer(1, "i"), driver.buffer([1.0, 2.0])
        like = host.runtime.array_like(floats)
    for buffer in (floats, doubles, values, like):
        assert all(map(math.isnan, buffer.tolist()))
    assert ints.memory.tobytes() == b"\xcd" * 4


def test_reused_memory_is_poisoned_too(host: Any) -> None:
    with host.capture() as captured:
        first = host.driver.buffer(4)
        host.driver.memset(first, 7.0)
    host.executable(captured).launch()
    assert first.tolist() == [7.0] * 4
    del first
    with host.capture(pool=host.pool):
        second = host.driver.buffer(4)
    assert all(map(math.isnan, second.tolist()))


def test_operands_of_the_host_are_constants_and_values_are_copied_anew(host: Any) -> None:
    driver = host.driver
    data = [1.0, 2.0]
    with host.capture() as captured:
        values = driver.buffer(data)
    data[0] = 99.0
    launch = host.executable(captured).launch
    launch()
    assert values.tolist() == [1.0, 2.0]
    values[0] = 5.0
    launch()
    assert values.tolist() == [1.0, 2.0]


READS: dict[str, Callable[[Any, Any], object]] = {
    "index": lambda driver, b: b[0],
    "assignment": lambda driver, b: b.__setitem__(0, 1.0),
    "bool": lambda driver, b: bool(b),
    "tolist": lambda driver, b: b.tolist(),
    "iteration": lambda driver, b: list(b),
    "stream": lambda driver, b: driver.current.synchronize(),
    "event": lambda driver, b: driver.current.record_event().synchronize(),
    "query": lambda driver, b: driver.current.record_event().query(),
    "device": lambda driver, b: driver.synchronize(),
    "predicate": lambda driver, b: driver.tensorplay_conditional_read(driver.buffer(1, "?")),
}


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("read", READS)
def test_waiting_and_reading_back_break_the_capture(host: Any, read: str, mode: str) -> None:
    buffer = host.driver.buffer([1.0])
    capture = host.begin(mode)
    host.driver.submit(nothing, name="before")
    with pytest.raises(OperationRefused) as caught:
        READS[read](host.driver, buffer)
    assert caught.value.where.startswith(HERE)
    with pytest.raises(CaptureInvalidated) as later:
        host.driver.submit(nothing, name="after")
    assert caught.value.operation in str(later.value)
    assert caught.value.where in str(later.value)
    assert later.value.__cause__ is caught.value
    with pytest.raises(CaptureInvalidated, match="broke it"):
        host.runtime.graph_end(capture)
    assert host.driver.current.handle == 0
    READS[read](host.driver, buffer)


def test_the_first_illegal_call_is_the_one_named(host: Any) -> None:
    capture = host.begin()
    with pytest.raises(OperationRefused):
        host.driver.synchronize()
    with pytest.raises(OperationRefused):
        host.driver.current.synchronize()
    with pytest.raises(CaptureInvalidated, match=r"^ending .*: synchronize at"):
        host.runtime.graph_end(capture)


def test_repr_and_slices_of_a_buffer_read_nothing(host: Any) -> None:
    buffer = host.driver.buffer([1.0, 2.0])
    with host.capture():
        assert "float32[2]" in repr(buffer)
        assert len(buffer[1:]) == 1
        assert buffer.shape == (2,)


def test_a_stream_captures_once_at_a_time(host: Any) -> None:
    stream = host.driver.stream()
    capture = host.begin(stream=stream)
    before = host.driver.current
    with pytest.raises(CaptureError, match="already"):
        host.begin(stream=stream)
    with pytest.raises(CaptureError, match="already"):
        stream.begin_capture()
    assert host.driver.current is before
    host.driver.submit(nothing, name="work")
    assert host.runtime.graph_end(capture).node_count == 1


def test_begin_checks_all_it_is_given_and_changes_nothing(host: Any) -> None:
    driver, runtime = host.driver, host.runtime
    for begin in (host.begin, driver.stream().begin_capture):
        with pytest.raises(ArgumentError, match="'strict'"):
            begin("strict")
    with pytest.raises(ArgumentTypeError):
        host.begin(stream="stream")
    with pytest.raises(PoolMismatch):
        runtime.graph_begin("host", driver.stream(), object(), "global", _options(host))
    with pytest.raises(PoolMismatch):
        host.begin(pool=type(host)().runtime.pool_create("host"))
    with pytest.raises(UnsupportedByDriver, match="generators"):
        host.begin(generators=(object(),))
    with pytest.raises(ArgumentError, match="'cuda:0'"):
        runtime.resolve_device("cuda:0")
    assert driver.current.handle == 0
    assert not runtime.graph_capturing("host")


def _options(host: Any) -> Any:
    with host.capture() as captured:
        return captured.capture.options


def test_a_capture_ends_once_and_in_its_thread(host: Any) -> None:
    capture = host.begin()
    host.runtime.graph_end(capture)
    with pytest.raises(GraphStateError, match="over"):
        host.runtime.graph_end(capture)
    capture = host.begin("thread_local")
    with pytest.raises(CaptureError, match="relaxed"):
        in_a_thread(lambda: host.runtime.graph_end(capture))
    assert host.driver.current.handle == 0
    capture = host.begin("relaxed")
    in_a_thread(lambda: host.runtime.graph_end(capture))
    assert host.driver.current.handle == 0


def test_what_is_no_capture_is_refused_by_type(host: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="object"):
        host.runtime.graph_end(object())


def test_abort_is_silent_repeatable_and_restores_the_stream(host: Any) -> None:
    side = host.driver.stream()
    outer = host.driver.stream()
    with host.driver.using(outer):
        capture = host.begin()
        side.wait_stream(host.driver.current)
        for _ in range(2):
            host.runtime.graph_abort(capture, None)
        assert host.driver.current is outer
    assert not side.capturing
    with host.capture():
        pass
    host.runtime.graph_abort(capture, KeyError("again"))


def test_an_aborted_capture_lets_go_of_its_work_at_once(host: Any) -> None:
    class Operand:
        gone = False

        def __del__(self) -> None:
            Operand.gone = True

    gc.disable()
    try:
        capture = host.begin()
        event = host.driver.event()
        host.driver.submit(nothing, name="work", keep=Operand())
        event.record()
        with pytest.raises(OperationRefused):
            host.driver.synchronize()
        assert not Operand.gone
        host.runtime.graph_abort(capture, None)
        assert Operand.gone
    finally:
        gc.enable()


def test_a_capture_begun_below_can_be_taken_in(host: Any) -> None:
    driver, runtime, ran = host.driver, host.runtime, []
    stream = driver.stream()
    with pytest.raises(CaptureError, match="not capturing"):
        runtime.graph_adopt(stream, "somebody")
    stream.begin_capture("thread_local")
    capture = runtime.graph_adopt(stream.handle, "somebody")
    assert capture.stream == stream.handle
    with pytest.raises(GraphStateError, match="somebody's to end"):
        runtime.graph_end(capture)
    with driver.using(stream):
        driver.launch(ran.append, 1)
    runtime.graph_abort(capture, None)
    template = stream.end_capture()
    assert runtime.graph_end(capture) is template
    runtime.graph_instantiate(template).launch()
    assert ran == [1]


def test_end_capture_is_for_the_stream_that_began(host: Any) -> None:
    driver = host.driver
    stream, side = driver.stream(), driver.stream()
    with pytest.raises(GraphStateError, match="not capturing"):
        stream.end_capture()
    stream.begin_capture()
    side.wait_stream(stream)
    with pytest.raises(GraphStateError, match="elsewhere"):
        side.end_capture()
    stream.wait_stream(side)
    assert stream.end_capture().node_count == 0
    with host.capture(), pytest.raises(GraphStateError, match="elsewhere"):
        driver.current.end_capture()


def test_work_must_be_callable(host: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="the work is 3"):
        host.driver.submit(3, name="three")


def test_what_running_work_submits_is_part_of_it(host: Any) -> None:
    driver, ran = host.driver, []
    with host.capture() as inner:
        driver.launch(ran.append, "graph")
    launch = host.executable(inner).launch
    buffer = driver.buffer([1.0])

    def work() -> None:
        driver.launch(ran.append, "nested")
        launch()
        ran.append(buffer[0])

    with host.capture() as captured:
        driver.submit(work, name="work")
    executable = host.executable(captured)
    executable.launch()
    assert ran == ["nested", "graph", 1.0]
    with host.capture() as other:  # The thread's current stream records, and the work must not.
        executable.launch(driver.stream())
    assert ran == ["nested", "graph", 1.0] * 2
    assert other.template.node_count == 0


def test_running_work_cannot_begin_a_capture(host: Any) -> None:
    with pytest.raises(CaptureError, match="work that runs"):
        host.driver.submit(host.begin, name="begins")
    assert not host.runtime.graph_capturing("host")


def test_drivers_do_not_mix_their_events(host: Any) -> None:
    other = type(host)().driver
    with host.capture():
        event = host.driver.current.record_event()
        with pytest.raises(ArgumentError, match="another host driver"):
            other.stream().wait_event(event)
