"""Of a device: its facts, its streams, its arrays, how inputs reach a graph."""

from __future__ import annotations

import pytest

from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    TensorplayError,
)
from tensorplay_core.runtime import Runtime
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import four_parts, unchanged


class _Stream:
    """A stream of another library, as far as the protocol goes."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


# facts and devices


@pytest.mark.needs("describe")
def test_a_driver_describes_itself_in_words(runtime: Runtime) -> None:
    facts = runtime.describe()
    assert facts
    assert all(isinstance(key, str) and isinstance(fact, str) for key, fact in facts.items())


def test_resolving_a_device_twice_changes_nothing(runtime: Runtime, workbench: Workbench) -> None:
    assert runtime.resolve_device(workbench.device) == workbench.device
    assert hash(runtime.resolve_device(workbench.device)) == hash(workbench.device)


@pytest.mark.parametrize(
    "device", ["no such device", 4096, object()], ids=["name", "number", "object"]
)
def test_a_device_that_is_not_there_is_refused(runtime: Runtime, device: object) -> None:
    with pytest.raises(ArgumentError) as caught:
        runtime.resolve_device(device)
    four_parts(caught.value)


# the workbench itself, on which all else rests


def test_work_outside_a_capture_runs_at_once(workbench: Workbench) -> None:
    total = workbench.buffer([1.0, 2.0, 3.0])
    workbench.add_(total, workbench.buffer([10.0, 20.0, 30.0]))
    workbench.add_(total, 0.5)
    doubled = workbench.double(total)
    workbench.copy_(total, workbench.buffer([7.0, 8.0, 9.0]))
    assert workbench.read(doubled) == [23.0, 45.0, 67.0]
    assert workbench.read(total) == [7.0, 8.0, 9.0]


def test_arithmetic_is_float32(workbench: Workbench) -> None:
    total = workbench.buffer([0.1])
    workbench.add_(total, 0.2)
    assert workbench.read(total) == [0.30000001192092896]


@pytest.mark.parametrize(("first", "second"), [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (-1.0, 0.0)])
def test_less_compares_first_elements(workbench: Workbench, first: float, second: float) -> None:
    flag = workbench.flag(first >= second)
    workbench.less_(flag, workbench.buffer([first, 9.0]), workbench.buffer([second, -9.0]))
    assert workbench.read(flag) == [float(first < second)]
    workbench.less_(flag, workbench.buffer([second]), first)
    assert workbench.read(flag) == [float(second < first)]


def test_fresh_input_is_written_to_every_kind_of_buffer(workbench: Workbench) -> None:
    for made, values in (
        (workbench.buffer([0.0, 0.0]), [1.5, -2.5]),
        (workbench.flag(False), [1.0]),
        (workbench.index(0), [-3.0]),
    ):
        workbench.write(made, values)
        assert workbench.read(made) == values


def test_forked_work_is_joined(workbench: Workbench) -> None:
    left, right = workbench.buffer([1.0]), workbench.buffer([2.0])
    side = workbench.fork()
    with workbench.on(side):
        workbench.add_(left, 10.0)
    workbench.add_(right, 20.0)
    workbench.join(side)
    workbench.add_(left, right)
    assert workbench.read(left) == [33.0]


# streams


@pytest.mark.needs("current_stream")
def test_the_current_stream_is_this_threads_innermost(
    runtime: Runtime, workbench: Workbench
) -> None:
    outer, inner = workbench.stream(), workbench.stream()
    with unchanged(Facade(workbench)), workbench.on(outer):
        first = runtime.current_stream(workbench.device)
        with workbench.on(inner):
            second = runtime.current_stream(workbench.device)
        assert runtime.current_stream(workbench.device) == first
    assert first == runtime.resolve_stream(outer, workbench.device)
    assert second == runtime.resolve_stream(inner, workbench.device)
    assert first != second


@pytest.mark.needs("using_stream")
def test_using_a_stream_ends_with_its_block_even_if_that_fails(
    runtime: Runtime, workbench: Workbench
) -> None:
    chosen = workbench.stream()
    with (
        unchanged(Facade(workbench)),
        pytest.raises(KeyError),
        runtime.using_stream(chosen, workbench.device),
    ):
        current = runtime.current_stream(workbench.device)
        assert current == runtime.resolve_stream(chosen, workbench.device)
        raise KeyError


@pytest.mark.needs("resolve_stream")
def test_a_stream_is_anything_that_gives_its_handle(
    runtime: Runtime, workbench: Workbench, stream: object
) -> None:
    handle = runtime.resolve_stream(stream, workbench.device)
    assert isinstance(handle, int)
    assert runtime.resolve_stream(handle, workbench.device) == handle
    assert runtime.resolve_stream(_Stream(handle), workbench.device) == handle


@pytest.mark.needs("resolve_stream")
@pytest.mark.parametrize("value", ["stream", 1.5, object()], ids=["str", "float", "object"])
def test_what_is_no_stream_is_refused(
    runtime: Runtime, workbench: Workbench, value: object
) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        runtime.resolve_stream(value, workbench.device)
    four_parts(caught.value)


@pytest.mark.needs("side_stream", "pool_create")
def test_captures_that_share_a_pool_share_a_side_stream(
    runtime: Runtime, workbench: Workbench
) -> None:
    pool = runtime.pool_create(workbench.device)
    streams = [runtime.side_stream(workbench.device, pool) for _ in range(2)]
    first, second = (runtime.resolve_stream(one, workbench.device) for one in streams)
    assert first == second
    assert first != 0
    runtime.pool_release(pool)


# arrays


@pytest.mark.needs("array_like", "array_overlap")
def test_an_array_like_another_is_memory_of_its_own(runtime: Runtime, workbench: Workbench) -> None:
    array = workbench.buffer([1.0, 2.0])
    other = runtime.array_like(array)
    workbench.copy_(other, array)
    workbench.add_(other, 1.0)
    assert workbench.read(array) == [1.0, 2.0]
    assert not runtime.array_overlap(array, other)
    assert runtime.array_overlap(array, array)


@pytest.mark.needs("array_copy")
def test_an_array_copy_is_captured_like_other_work(
    runtime: Runtime, workbench: Workbench, facade: Facade
) -> None:
    source, target = workbench.buffer([1.0, 2.0]), workbench.buffer([0.0, 0.0])
    made = facade.record(lambda: runtime.array_copy(target, source))
    assert workbench.read(target) == [0.0, 0.0]
    workbench.write(source, [3.0, 4.0])
    made.replay()
    assert workbench.read(target) == [3.0, 4.0]


@pytest.mark.needs("array_copy")
def test_an_array_copy_never_broadcasts(runtime: Runtime, workbench: Workbench) -> None:
    target = workbench.buffer([1.0, 2.0, 3.0])
    with pytest.raises(TensorplayError) as caught:
        runtime.array_copy(target, workbench.buffer([9.0]))
    four_parts(caught.value)
    assert workbench.read(target) == [1.0, 2.0, 3.0]


@pytest.mark.needs("signature_check")
def test_a_signature_check_never_says_yes_to_what_would_not_do(
    runtime: Runtime, workbench: Workbench
) -> None:
    static = [workbench.buffer([0.0, 0.0]), workbench.buffer([0.0])]
    check = runtime.signature_check(static)
    assert check([workbench.buffer([1.0, 2.0]), workbench.buffer([3.0])])
    assert not check([workbench.buffer([1.0, 2.0])])
    assert not check([*static, workbench.buffer([3.0])])
    assert not check([workbench.buffer([1.0]), workbench.buffer([2.0, 3.0])])
    assert not check([workbench.buffer([1.0, 2.0]), workbench.flag(True)])
    assert not check([workbench.buffer([1.0, 2.0]), workbench.index(3)])
