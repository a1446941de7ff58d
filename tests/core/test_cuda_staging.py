"""Staged launches of the CUDA driver on a GPU: any size, any stream, any order."""

import ctypes
import struct
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tensorplay_core.errors import (
    CaptureError,
    GraphStateError,
    PoolExhausted,
    SignatureMismatch,
)

pytestmark = pytest.mark.gpu


def bytes_of(cuda: Any, array: Any) -> bytes:
    return struct.pack(f"{array.nbytes}B", *cuda.driver.read(array))


def fresh(cuda: Any, size: int, seed: int) -> Any:
    return cuda.driver.buffer([(seed + 7 * place) % 256 for place in range(size)], "|u1")


@pytest.mark.parametrize("conditional", [False, True], ids=["embedded", "beside"])
@pytest.mark.parametrize("count", [1, 4, 5, 16, 100, 160, 161, 256])
def test_any_number_of_inputs_of_any_size_is_staged(
    cuda: Any, count: int, conditional: bool
) -> None:
    sizes = [(0, 1, 3, 4, 15, 16, 17, 64, 255)[place % 9] for place in range(count)]
    # Written, because initcheck looks at what a graph's copies read before its own kernel wrote it.
    static = [fresh(cuda, size, 0) for size in sizes]
    kept = [cuda.driver.empty(size, "|u1") for size in sizes]
    flag, made = cuda.bench.flag(True), cuda.facade.new()
    with cuda.facade.capture(made):
        for one, other in zip(static, kept, strict=True):
            cuda.driver.copy(other, one)
        cuda.bench.less_(flag, cuda.total, 1.0)
        if conditional:
            with made.if_then(flag):
                cuda.bench.add_(cuda.total, 0.0)
    plan = made.stage(static, kept)
    expected, results = [], []
    for step in range(3):
        given = [fresh(cuda, size, step + place) for place, size in enumerate(sizes)]
        expected.append([bytes_of(cuda, one) for one in given])
        results.append(plan(given))
        del given
    for wanted, got in zip(expected, results, strict=True):
        assert [bytes_of(cuda, one) for one in got] == wanted


def test_sources_that_are_not_aligned_are_staged(cuda: Any) -> None:
    whole = fresh(cuda, 400, 3)
    content = bytes_of(cuda, whole)

    class Part:
        """Bytes of a buffer from an odd place on."""

        def __init__(self, start: int, size: int) -> None:
            self.device, self.shape, self.strides = whole.device, (size,), (1,)
            self.dtype = "|u1"
            self.__cuda_array_interface__ = {
                "shape": (size,),
                "typestr": "|u1",
                "data": (whole.pointer + start, False),
                "version": 3,
            }

    for start, size in ((0, 100), (1, 100), (4, 99), (7, 33), (16, 128), (399, 1)):
        static = Part(0, size)
        holder = cuda.driver.empty(size, "|u1")
        static.__cuda_array_interface__["data"] = (holder.pointer, False)
        made = cuda.facade.record(lambda: cuda.bench.add_(cuda.total, 0.0))
        plan = made.stage([static])
        plan([Part(start, size)])
        assert bytes_of(cuda, holder) == content[start : start + size]


def test_launches_back_to_back_take_their_own_inputs(cuda: Any) -> None:
    bench = cuda.bench
    x, total = bench.buffer([0.0] * 1000), bench.buffer([0.0] * 1000)
    made = cuda.facade.record(lambda: bench.add_(total, x))
    plan = made.stage([x], [total])
    given = [bench.buffer([float(step)] * 1000) for step in range(1, 51)]
    bench.synchronize()
    results = [plan([one])[0] for one in given]
    expected = 0.0
    for step, result in enumerate(results, start=1):
        expected += step
        assert bench.read(result) == [expected] * 1000


def test_inputs_may_be_dropped_and_their_memory_reused_at_once(cuda: Any) -> None:
    bench = cuda.bench
    size = 1 << 16
    x, total = bench.buffer([0.0] * size), bench.buffer([0.0] * size)
    made = cuda.facade.record(lambda: bench.add_(total, x))
    plan, stream = made.stage([x]), bench.stream()
    seen = []
    for step in range(20):
        one = bench.buffer([float(step)] * size)
        seen.append(weakref.ref(one))
        plan([one], stream=stream)
        del one
        bench.buffer([-99.0] * size)
    cuda.driver.synchronize()
    assert bench.read(total)[:3] == [190.0] * 3
    plan([x], stream=stream)
    cuda.driver.synchronize()
    plan([x], stream=stream)
    # What was copied long ago is held no longer.
    assert [ref() for ref in seen[:-2]] == [None] * 18


def test_inputs_that_alias_each_others_buffers_are_exchanged(cuda: Any) -> None:
    bench = cuda.bench
    a, b, c = (bench.buffer([value, -value]) for value in (1.0, 2.0, 3.0))
    made = cuda.facade.record(lambda: bench.add_(cuda.total, 0.0))
    plan = made.stage([a, b, c])
    plan([b, c, a])
    assert [bench.read(one)[0] for one in (a, b, c)] == [2.0, 3.0, 1.0]
    plan([a, a, a])
    assert [bench.read(one)[0] for one in (a, b, c)] == [2.0, 2.0, 2.0]


@pytest.fixture
def stranger(cuda: Any) -> Iterator[int]:
    """A context that is not the device's own, current in this thread."""
    native = cuda.driver.native
    device = native.CUdevice(int(cuda.device))
    try:
        code, made = native.cuCtxCreate(None, 0, device)
    except TypeError:  # Before CUDA 13.
        code, made = native.cuCtxCreate(0, device)
    assert not code
    yield int(made)
    assert int(native.cuCtxPopCurrent()[1]) == int(made)
    assert not native.cuCtxDestroy(made)[0]


@pytest.mark.parametrize("named", [False, True], ids=["current", "named"])
@pytest.mark.parametrize("form", ["plan", "results", "stage_and_launch"])
def test_staging_leaves_another_context_current_and_works_in_its_own(
    cuda: Any, stranger: int, form: str, named: bool
) -> None:
    bench = cuda.bench
    x, total = bench.buffer([0.0] * 1000), bench.buffer([0.0] * 1000)
    made = cuda.facade.record(lambda: bench.add_(total, x))
    plan = made.stage([x], [total] if form == "results" else [])
    stream = bench.stream() if named else None
    given = [bench.buffer([float(step)] * 1000) for step in range(1, 4)]
    bench.synchronize()
    for place, one in enumerate(given):
        if form == "stage_and_launch":
            made.stage_and_launch([x], [one], stream=stream)
        else:
            found = plan([one], stream=stream)
            if form == "results":
                assert bench.read(found[0]) == [(1.0, 3.0, 6.0)[place]] * 1000
        assert cuda.driver.hot.context() == stranger
    bench.synchronize()
    assert bench.read(total) == [6.0] * 1000


def test_staged_and_plain_launches_keep_their_order_across_streams(cuda: Any) -> None:
    bench = cuda.bench
    size = 1 << 18
    x, total = bench.buffer([0.0] * size), bench.buffer([0.0] * size)
    made = cuda.facade.record(lambda: bench.add_(total, x))
    streams = [bench.stream() for _ in range(3)]
    bench.synchronize()
    made.replay(streams[0])
    plan = made.stage([x], [total])
    given = [bench.buffer([float(step)] * size) for step in range(10)]
    bench.synchronize()
    expected, results = 0.0, []
    for step, one in enumerate(given):
        expected += step
        results.append((expected, plan([one], stream=streams[step % 3])[0]))
        made.replay(streams[(step + 1) % 3])
        expected += step
    bench.synchronize()
    for wanted, result in results:
        assert set(bench.read(result)) == {wanted}
    assert set(bench.read(total)) == {expected}


def test_staging_inside_a_capture_is_refused_and_breaks_nothing(cuda: Any) -> None:
    bench = cuda.bench
    x, total = bench.buffer([0.0]), bench.buffer([0.0])
    one = bench.buffer([1.0])
    made = cuda.facade.record(lambda: bench.add_(total, x))
    plan = made.stage([x])
    outer = cuda.facade.new()
    with cuda.facade.capture(outer):
        bench.add_(total, 10.0)
        with pytest.raises(CaptureError):
            plan([one])
    outer.replay()
    plan([one])
    assert bench.read(total) == [11.0]


def test_a_plan_of_a_closed_graph_is_refused(cuda: Any) -> None:
    bench = cuda.bench
    x, total = bench.buffer([0.0]), bench.buffer([0.0])
    made = cuda.facade.record(lambda: bench.add_(total, x))
    plan = made.stage([x], [total])
    (before,) = plan([bench.buffer([1.0])])
    made.close()
    with pytest.raises(GraphStateError):
        plan([bench.buffer([1.0])])
    assert bench.read(before) == [1.0]


def test_buffers_that_bytes_cannot_fill_are_left_to_full_copies(cuda: Any) -> None:
    bench = cuda.bench
    x, total = bench.buffer([0.0, 0.0]), bench.buffer([0.0, 0.0])
    made = cuda.facade.record(lambda: bench.add_(total, x))
    plan = made.stage([x, x])
    with pytest.raises(SignatureMismatch) as caught:
        plan([bench.buffer([1.0, 1.0])] * 2)
    assert "overlaps" in str(caught.value)


@pytest.mark.slow
def test_more_than_two_gigabytes_are_staged_to_the_last_byte(cuda: Any) -> None:
    size = 2**31 + 16 * 1000 + 5
    try:
        x, source = (cuda.driver.empty(size, "|u1") for _ in range(2))
    except PoolExhausted:
        pytest.skip("the device has no 4 GiB free")
    cuda.driver.memset(x, 0)
    cuda.driver.memset(source, 7)
    made = cuda.facade.record(lambda: cuda.bench.add_(cuda.total, 0.0))
    plan = made.stage([x])
    plan([source])
    cuda.bench.synchronize()
    raw = ctypes.create_string_buffer(64)
    for start in (0, size // 2, 2**31 - 32, size - 64):
        with cuda.driver.activated(cuda.device):
            cuda.driver.cu.cuMemcpyDtoHAsync(
                ctypes.addressof(raw), x.pointer + start, 64, cuda.driver.service(cuda.device)
            )
            cuda.driver.cu.cuStreamSynchronize(cuda.driver.service(cuda.device))
        assert raw.raw == bytes([7]) * 64
