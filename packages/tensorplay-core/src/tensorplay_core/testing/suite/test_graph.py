"""Of a graph: a capture executes nothing, a replay everything, where and when it is sent."""

from __future__ import annotations

import threading

import pytest

from tensorplay_core.errors import GraphStateError, TensorplayError
from tensorplay_core.runtime import Runtime
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import four_parts, unchanged

# capture and replay


def test_a_capture_executes_nothing_and_a_replay_everything(
    workbench: Workbench, facade: Facade
) -> None:
    total, step = workbench.buffer([1.0, 2.0]), workbench.buffer([10.0, 20.0])
    with unchanged(facade):
        made = facade.record(lambda: workbench.add_(total, step))
    assert workbench.read(total) == [1.0, 2.0]
    with unchanged(facade):
        made.replay()
    assert workbench.read(total) == [11.0, 22.0]


def test_every_replay_sees_fresh_inputs(workbench: Workbench, facade: Facade) -> None:
    x, y = workbench.buffer([0.0]), workbench.buffer([0.0])

    def work() -> None:
        workbench.copy_(y, x)
        workbench.add_(y, x)

    made = facade.record(work)
    for value in (1.0, -2.5, 1024.0, 1.0):
        workbench.write(x, [value])
        made.replay()
        assert workbench.read(y) == [2 * value]


def test_replays_follow_each_other_without_waiting(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, 1.0))
    for _ in range(100):
        made.replay()
    assert workbench.read(total) == [100.0]


def test_a_host_number_is_a_constant_of_the_capture(workbench: Workbench, facade: Facade) -> None:
    total, step = workbench.buffer([0.0]), 1.0
    made = facade.record(lambda: workbench.add_(total, step))
    step = 100.0
    made.replay()
    assert workbench.read(total) == [1.0]


def test_a_buffer_born_in_the_capture_changes_at_each_replay(
    workbench: Workbench, facade: Facade
) -> None:
    x = workbench.buffer([1.0, 2.0])
    made = facade.new()
    with facade.capture(made):
        y = workbench.double(x)
        z = workbench.double(y)
    for value in (1.0, 5.0):
        workbench.write(x, [value, -value])
        made.replay()
        assert workbench.read(y) == [2 * value, -2 * value]
        assert workbench.read(z) == [4 * value, -4 * value]


def test_the_with_block_yields_the_graph(facade: Facade, workbench: Workbench) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    with facade.capture(made) as yielded:
        workbench.add_(total, 1.0)
    assert yielded is made


def test_a_capture_makes_its_stream_current_and_its_end_restores(
    runtime: Runtime, workbench: Workbench, facade: Facade
) -> None:
    total, chosen, made = workbench.buffer([0.0]), workbench.stream(), facade.new()
    handle = runtime.resolve_stream(chosen, workbench.device)
    with unchanged(facade):
        made.capture_begin(stream=chosen)
        assert runtime.current_stream(workbench.device) == handle
        workbench.add_(total, 1.0)
        made.capture_end()
    made.replay()
    assert workbench.read(total) == [1.0]


def test_a_capture_is_seen_as_such(workbench: Workbench, facade: Facade) -> None:
    total, elsewhere = workbench.buffer([0.0]), []
    assert not facade.capturing()
    with facade.capture(facade.new()):
        workbench.add_(total, 1.0)
        assert facade.capturing()
        other = threading.Thread(target=lambda: elsewhere.append(facade.capturing()))
        other.start()
        other.join()
    assert not facade.capturing()
    assert elsewhere == [False]


def test_forked_streams_are_captured_with_it(workbench: Workbench, facade: Facade) -> None:
    left, right = workbench.buffer([1.0]), workbench.buffer([2.0])

    def work() -> None:
        workbench.add_(left, 1.0)
        outer = workbench.fork()
        with workbench.on(outer):
            workbench.add_(left, 10.0)
            inner = workbench.fork()
            with workbench.on(inner):
                workbench.add_(left, 100.0)
            workbench.join(inner)
        workbench.add_(right, 20.0)
        workbench.join(outer)
        workbench.add_(left, right)

    made = facade.record(work)
    assert workbench.read(left) == [1.0]
    made.replay()
    assert workbench.read(left) == [134.0]


def test_a_forked_stream_is_free_again_after_the_capture(
    workbench: Workbench, facade: Facade
) -> None:
    total, sides = workbench.buffer([0.0]), []

    def work() -> None:
        sides.append(workbench.fork())
        with workbench.on(sides[0]):
            workbench.add_(total, 1.0)
        workbench.join(sides[0])

    made = facade.record(work)
    with workbench.on(sides[0]):
        assert not facade.capturing()
        workbench.add_(total, 10.0)
    workbench.synchronize()
    made.replay()
    assert workbench.read(total) == [11.0]


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_each_capture_mode_captures(workbench: Workbench, facade: Facade, mode: str) -> None:
    total = workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, 1.0), capture_error_mode=mode)
    made.replay()
    assert workbench.read(total) == [1.0]


# launching


def test_a_replay_goes_where_it_is_sent(
    runtime: Runtime, workbench: Workbench, facade: Facade
) -> None:
    total, chosen = workbench.buffer([0.0]), workbench.stream()
    made = facade.record(lambda: workbench.add_(total, 1.0))
    with unchanged(facade):
        made.replay(chosen)
        made.replay(stream=runtime.resolve_stream(chosen, workbench.device))
    workbench.synchronize()
    with workbench.on(workbench.stream()):
        made.replay()
    assert workbench.read(total) == [3.0]


def test_a_replay_is_ordered_on_its_stream(workbench: Workbench, facade: Facade) -> None:
    x, y, chosen = workbench.buffer([0.0]), workbench.buffer([0.0]), workbench.stream()
    made = facade.record(lambda: workbench.copy_(y, x))
    workbench.synchronize()
    with workbench.on(chosen):
        for _ in range(50):
            workbench.add_(x, 1.0)
            made.replay()
            workbench.add_(y, 0.5)
    workbench.synchronize()
    assert workbench.read(y) == [50.5]


def test_a_launch_refuses_what_is_no_stream(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, 1.0))
    with unchanged(facade), pytest.raises(TypeError) as caught:
        made.replay("stream")
    assert isinstance(caught.value, TensorplayError)
    four_parts(caught.value)
    assert workbench.read(total) == [0.0]


def test_an_upload_runs_nothing(workbench: Workbench, facade: Facade) -> None:
    total = workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, 1.0))
    made.upload()
    made.upload(workbench.stream())
    workbench.synchronize()
    assert workbench.read(total) == [0.0]
    made.replay()
    assert workbench.read(total) == [1.0]


def test_a_kept_graph_is_instantiated_late_and_again(workbench: Workbench, facade: Facade) -> None:
    total, made = workbench.buffer([0.0]), facade.new(keep_graph=True)
    with facade.capture(made):
        workbench.add_(total, 1.0)
    with pytest.raises(GraphStateError) as caught:
        made.raw_cuda_graph_exec()
    four_parts(caught.value)
    made.replay()
    made.instantiate()
    made.instantiate()
    made.replay()
    assert workbench.read(total) == [2.0]
