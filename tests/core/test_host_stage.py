"""Staged launches of the host: strict, complete, at once, and their results stay."""

import threading
from typing import Any

import numpy
import pytest

from tensorplay_core import graph, select
from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    GraphStateError,
    OperationRefused,
    SignatureMismatch,
)

from .host_work import HostGraph

DRIVER: Any = select("host").driver


def summing(host: Any, first: Any, second: Any) -> tuple[Any, Any]:
    """An executable of ``out = first + 10 * second``, and ``out``."""

    def work(out: Any, first: Any, second: Any) -> None:
        for index in range(len(out)):
            out.memory[index] = first.memory[index] + 10 * second.memory[index]

    with host.capture() as captured:
        out = host.driver.buffer(2)
        host.driver.launch(work, out, first, second, writes=(out,))
    return host.executable(captured), out


@pytest.fixture
def plan(host: Any) -> tuple[Any, ...]:
    first, second = host.driver.buffer([0.0, 0.0]), host.driver.buffer([0.0, 0.0])
    executable, out = summing(host, first, second)
    return host.runtime.stage(executable, [first, second], [out]), first, second, out, executable


def test_a_plan_copies_launches_and_returns_results_that_stay(
    host: Any, plan: tuple[Any, ...]
) -> None:
    call, *_ = plan
    (one,) = call([host.driver.buffer([1.0, 2.0]), host.driver.buffer([3.0, 4.0])])
    (two,) = call(
        (numpy.float32([5, 6]), host.driver.buffer([0.0, 0.0])), stream=host.driver.stream()
    )
    assert one.tolist() == [31.0, 42.0]
    assert two.tolist() == [5.0, 6.0]


def test_every_difference_is_listed_and_nothing_is_changed(
    host: Any, plan: tuple[Any, ...]
) -> None:
    call, first, second, *_ = plan
    buffer = host.driver.buffer
    with pytest.raises(SignatureMismatch) as caught:
        call([buffer([1.0, 2.0, 3.0]), buffer([1, 2], "i")])
    assert caught.value.differences == (
        "inputs[0].shape: captured (2,), got (3,)",
        "inputs[1].dtype: captured float32, got int32",
    )
    with pytest.raises(SignatureMismatch, match="got a list"):
        call([buffer([1.0, 2.0]), [1.0, 2.0]])
    with pytest.raises(SignatureMismatch) as caught:
        call([buffer([1.0, 2.0])])
    assert caught.value.differences == ("len(inputs): captured 2, got 1",)
    assert first.tolist() == second.tolist() == [0.0, 0.0]


def test_inputs_that_are_static_buffers_themselves_are_taken_at_once(
    host: Any, plan: tuple[Any, ...]
) -> None:
    call, first, second, *_ = plan
    host.driver.copy(first, host.driver.buffer([1.0, 2.0]))
    host.driver.copy(second, host.driver.buffer([3.0, 4.0]))
    (same,) = call([first, second])
    assert same.tolist() == [31.0, 42.0]
    (swapped,) = call([second, first])
    assert swapped.tolist() == [13.0, 24.0]
    assert first.tolist() == [3.0, 4.0]


def test_inputs_that_are_views_of_static_memory_are_taken_at_once(host: Any) -> None:
    base = numpy.float32([1, 2, 3, 4])
    first, second = host.driver.buffer(base[:2]), host.driver.buffer(base[2:])
    executable, out = summing(host, first, second)
    plan = host.runtime.stage(executable, [first, second], [out])
    (result,) = plan([base[1:3], base[0:2]])
    assert result.tolist() == [12.0, 23.0]


def test_n_dimensional_memory_is_staged(host: Any) -> None:
    static, out = (host.driver.buffer(numpy.zeros((2, 2), dtype="float64")) for _ in range(2))
    with host.capture() as captured:
        host.driver.copy(out, static)
    plan = host.runtime.stage(host.executable(captured), [static], [out])
    (result,) = plan([numpy.float64([[1, 2], [3, 4]])])
    assert result.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(SignatureMismatch, match=r"\(2, 2\), got \(4,\)"):
        plan([numpy.zeros(4)])


def test_a_plan_needs_memory_it_can_write(host: Any, plan: tuple[Any, ...]) -> None:
    *_, executable = plan
    with pytest.raises(ArgumentError, match="read-only"):
        host.runtime.stage(executable, [bytes(4)], [])


def test_a_plan_of_a_closed_executable_says_so(host: Any, plan: tuple[Any, ...]) -> None:
    call, first, second, _, executable = plan
    executable.close()
    with pytest.raises(GraphStateError, match="closed"):
        call([first, second])


def test_calls_of_many_threads_do_not_mix(host: Any, plan: tuple[Any, ...]) -> None:
    call, *_ = plan
    wrong: list[Any] = []
    start = threading.Barrier(4)

    def run(number: float) -> None:
        inputs = [host.driver.buffer([number, number]) for _ in range(2)]
        start.wait()
        for _ in range(200):
            (result,) = call(inputs)
            if result.tolist() != [11 * number] * 2:
                wrong.append(result.tolist())

    threads = [threading.Thread(target=run, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_plan_called_in_a_capture_is_recorded_whole(host: Any, plan: tuple[Any, ...]) -> None:
    call, first, second, *_ = plan
    source = host.driver.buffer([1.0, 2.0])
    with host.capture() as captured:
        stream = host.driver.current
        with host.driver.using(host.driver.stream()):
            (result,) = call([source, first], stream=stream)
    assert first.tolist() == [0.0, 0.0]
    host.driver.copy(first, host.driver.buffer([3.0, 4.0]))
    launch = host.executable(captured).launch
    launch()
    assert result.tolist() == [31.0, 42.0]
    source[0] = 7.0
    launch()
    assert result.tolist() == [17.0, 22.0]
    assert second.tolist() == [1.0, 2.0]


def test_the_fast_check_agrees_with_the_plan(host: Any) -> None:
    static = [host.driver.buffer([1.0, 2.0]), host.driver.buffer([True], "?")]
    check = host.runtime.signature_check(static)
    assert check([numpy.zeros(2, dtype="float32"), host.driver.buffer([False], "?")])
    for wrong in (
        static[:1],
        [static[0], static[0]],
        [host.driver.buffer([1.0]), static[1]],
        [host.driver.buffer([1, 2], "i"), static[1]],
        [None, static[1]],
        [numpy.zeros(4, dtype="float32")[::2], static[1]],
    ):
        assert not check(wrong)


def test_a_refused_stream_leaves_the_static_inputs_as_they_were(
    host: Any, plan: tuple[Any, ...]
) -> None:
    call, first, second, *_ = plan
    capture = host.begin(stream=host.driver.stream(blocking=True))
    fresh = host.driver.buffer(2)
    with pytest.raises(OperationRefused, match="legacy"):
        call([fresh, fresh], stream=0)
    host.runtime.graph_abort(capture, None)
    assert first.tolist() == second.tolist() == [0.0, 0.0]


def test_buffers_in_a_generator_are_read_once_and_inputs_must_have_a_length() -> None:
    total, x = DRIVER.buffer([0.0]), DRIVER.buffer([1.0])
    with graph(HostGraph()) as made:
        DRIVER.copy(total, x)
    plan = made.stage((one for one in [x]), (one for one in [total]))
    assert plan([DRIVER.buffer([3.0])])[0].tolist() == [3.0]
    for odd in ((one for one in [x]), None):
        with pytest.raises(SignatureMismatch, match="inputs: captured 1 arrays"):
            plan(odd)
    made.stage_and_launch([x], (one for one in [DRIVER.buffer([4.0])]))
    for given in (None, 3, x):
        with pytest.raises(ArgumentTypeError):
            made.stage(given)


def test_a_closed_graph_says_that_it_stays_closed() -> None:
    made = HostGraph()
    made.close()
    with pytest.raises(GraphStateError, match="stays so"):
        made.replay()


def test_what_the_work_raises_is_no_reason_to_run_it_again() -> None:
    x, ran = DRIVER.buffer([1.0]), []

    def fails() -> None:
        ran.append(1)
        if len(ran) > 1:
            raise GraphStateError(doing="a", subject="b", met="c", remedy="d")

    with graph(HostGraph()) as made:
        DRIVER.launch(fails)
    made.stage_and_launch([x], [x])
    with pytest.raises(GraphStateError):
        made.stage_and_launch([x], [x])
    assert len(ran) == 2
