"""The CUDA driver on a GPU, beyond what the conformance suite asks of every driver."""

import threading
from typing import Any

import pytest

from tensorplay_core.errors import (
    ArgumentError,
    CaptureInvalidated,
    DriverCallFailed,
    GraphStateError,
    OperationRefused,
    PoolExhausted,
)

pytestmark = pytest.mark.gpu


def test_a_thread_that_never_used_the_gpu_replays(cuda: Any) -> None:
    total, failed = cuda.bench.buffer([0.0]), []
    made = cuda.facade.record(lambda: cuda.bench.add_(total, 1.0))
    stream = cuda.bench.stream()

    def run() -> None:
        try:
            made.replay()
            made.replay(stream)
            made.replay(stream.handle)
        except BaseException as error:
            failed.append(error)

    other = threading.Thread(target=run)
    other.start()
    other.join()
    cuda.bench.synchronize()
    assert failed == []
    assert cuda.bench.read(total) == [3.0]


def test_a_launch_on_what_is_no_stream_leaves_the_graph_usable(cuda: Any) -> None:
    total = cuda.bench.buffer([0.0])
    made = cuda.facade.record(lambda: cuda.bench.add_(total, 1.0))
    with pytest.raises(TypeError):
        made.replay("stream")
    made.replay()
    assert cuda.bench.read(total) == [1.0]


def test_a_closed_executable_refuses_through_a_bound_replay(cuda: Any) -> None:
    total = cuda.bench.buffer([0.0])
    made = cuda.facade.record(lambda: cuda.bench.add_(total, 1.0))
    replay = made.replay
    replay()
    made.close()
    for stream in (None, cuda.bench.stream()):
        with pytest.raises(GraphStateError):
            replay(stream)
    assert cuda.bench.read(total) == [1.0]


def test_closing_waits_for_launches_under_way(cuda: Any) -> None:
    count, flag = cuda.bench.buffer([0.0]), cuda.bench.flag(True)
    made, stream = cuda.facade.new(), cuda.bench.stream()
    with cuda.facade.capture(made), made.while_loop(flag):
        cuda.bench.add_(count, 1.0)
        cuda.bench.less_(flag, count, 20000.0)
    event = cuda.driver.event()
    made.replay(stream)
    assert not cuda.native("cuEventRecord", event.native, stream.handle)
    made.close()
    # All that the graph did is done: whatever it read may be freed from here on.
    assert not cuda.native("cuEventQuery", event.native)
    assert cuda.bench.read(count) == [20000.0]


def test_a_replay_inside_a_capture_is_refused_by_name(cuda: Any) -> None:
    total = cuda.bench.buffer([0.0])
    inner = cuda.facade.record(lambda: cuda.bench.add_(total, 1.0))

    def work() -> None:
        cuda.bench.add_(total, 10.0)
        inner.replay()

    with pytest.raises(CaptureInvalidated) as caught:
        cuda.facade.record(work)
    assert "executable" in caught.value.subject
    assert cuda.bench.read(total) == [0.0]
    inner.replay()
    assert cuda.bench.read(total) == [1.0]


def test_raw_handles_are_those_of_the_driver(cuda: Any) -> None:
    total = cuda.bench.buffer([0.0])
    made = cuda.facade.record(lambda: cuda.bench.add_(total, 1.0))
    native = cuda.driver.native
    with cuda.driver.activated(cuda.device):
        code, _, count = native.cuGraphGetNodes(native.CUgraph(made.raw_cuda_graph()))
        launched = native.cuGraphLaunch(native.CUgraphExec(made.raw_cuda_graph_exec()), 0)
    assert (int(code), count, int(launched[0])) == (0, 1, 0)
    assert cuda.bench.read(total) == [1.0]


def test_streams_and_events_order_work(cuda: Any) -> None:
    bench, driver = cuda.bench, cuda.driver
    x, y = bench.buffer([0.0] * 4096), bench.buffer([0.0] * 4096)
    first, second = driver.stream(), driver.stream()
    with driver.using(first):
        for _ in range(50):
            bench.add_(x, 1.0)
        event = first.record_event()
    second.wait_event(event)
    with driver.using(second):
        bench.copy_(y, x)
    first.wait_stream(second)
    with driver.using(first):
        bench.add_(x, y)
        last = driver.event()
        last.record()
    last.synchronize()
    assert last.query()
    first.synchronize()
    assert not first.capturing
    assert set(bench.read(x)) == {100.0}
    with cuda.facade.capture(cuda.facade.new(), stream=first):
        assert first.capturing
        bench.add_(x, 1.0)
        with pytest.raises(OperationRefused):
            first.synchronize()
    first.close()
    first.close()
    with pytest.raises(GraphStateError):
        first.synchronize()


@pytest.mark.parametrize(
    ("typestr", "values"),
    [
        ("|b1", [True, False]),
        ("|u1", [0, 7, 255]),
        ("<i2", [0, -2, 300]),
        ("<f4", [0.0, 1.5, -2.0]),
        ("<i4", [0, -1, 123456]),
        ("<f8", [0.0]),
        ("<i8", [0, -1]),
    ],
)
def test_memory_is_set_by_element(cuda: Any, typestr: str, values: list[float]) -> None:
    array = cuda.driver.empty(5, typestr)
    made = cuda.facade.new()
    with cuda.facade.capture(made):
        cuda.driver.memset(array, values[-1])
    for value in values:
        cuda.driver.memset(array, value)
        assert cuda.driver.read(array) == [value] * 5
    cuda.driver.memset(array, 0)
    made.replay()
    assert cuda.driver.read(array) == [values[-1]] * 5


def test_what_takes_a_kernel_is_not_set(cuda: Any) -> None:
    array = cuda.driver.buffer([1.0], "<f8")
    for value in (1.5, 2**70):
        with pytest.raises(ArgumentError):
            cuda.driver.memset(cuda.driver.buffer([1], "<i8") if value != 1.5 else array, value)
    assert cuda.driver.read(array) == [1.0]


def test_the_legacy_stream_breaks_a_capture_and_is_named(cuda: Any) -> None:
    total, made = cuda.bench.buffer([0.0]), cuda.facade.new()
    with cuda.driver.activated(cuda.device):
        _, native = cuda.driver.native.cuStreamCreate(0)  # One that blocks the legacy stream.
    with (
        pytest.raises(CaptureInvalidated) as caught,
        cuda.facade.capture(made, stream=int(native), capture_error_mode="relaxed"),
    ):
        cuda.bench.add_(total, 1.0)
        with cuda.bench.on(0):
            cuda.bench.add_(total, 1.0)
    assert "legacy" in str(caught.value)
    cuda.native("cuStreamDestroy", native)
    cuda.works(total)


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_an_unsafe_call_breaks_a_capture_and_its_end_says_so(cuda: Any, mode: str) -> None:
    total, made = cuda.bench.buffer([0.0]), cuda.facade.new()
    with pytest.raises(CaptureInvalidated), cuda.facade.capture(made, capture_error_mode=mode):
        cuda.bench.add_(total, 1.0)
        assert int(cuda.native("cuMemAlloc", 64)) == 900
    made.reset()
    with cuda.facade.capture(made, capture_error_mode="relaxed"):
        cuda.bench.add_(total, 1.0)
        with cuda.driver.activated(cuda.device):
            code, address = cuda.driver.native.cuMemAlloc(64)
        assert not code
    cuda.native("cuMemFree", address)
    made.replay()
    assert cuda.bench.read(total) == [1.0]


def test_memory_that_is_not_there_is_a_typed_error(cuda: Any) -> None:
    with pytest.raises(PoolExhausted) as caught:
        cuda.driver.empty(1 << 50, "|u1")
    assert isinstance(caught.value, MemoryError)
    made = cuda.facade.new()
    with pytest.raises(PoolExhausted), cuda.facade.capture(made):
        cuda.driver.empty(1 << 50, "|u1")
    total = cuda.bench.buffer([0.0])
    with cuda.facade.capture(made):
        cuda.bench.add_(total, 1.0)
    made.replay()
    assert cuda.bench.read(total) == [1.0]


def test_a_graph_that_allows_one_executable_says_so(cuda: Any) -> None:
    total, flag = cuda.bench.buffer([0.0]), cuda.bench.flag(True)
    made = cuda.facade.new(keep_graph=True)
    with cuda.facade.capture(made), made.if_then(flag):
        cuda.bench.add_(total, 1.0)
    made.instantiate()
    with pytest.raises(DriverCallFailed) as caught:
        cuda.runtime.graph_instantiate(made._template)
    assert "once only" in str(caught.value)
    made.replay()
    assert cuda.bench.read(total) == [1.0]
