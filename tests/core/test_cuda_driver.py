"""The CUDA driver on a GPU, beyond what the conformance suite asks of every driver."""

import ctypes
import gc
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tensorplay_core import reclaim
from tensorplay_core.discovery import find_workbench
from tensorplay_core.errors import (
    ArgumentError,
    CaptureError,
    CaptureInvalidated,
    ConditionalError,
    DriverCallFailed,
    GraphStateError,
    OperationRefused,
    PoolExhausted,
    SignatureMismatch,
    UnjoinedWork,
)
from tensorplay_core.protocols import ConditionalKind
from tensorplay_core.runtime import Runtime, select
from tensorplay_core.testing.facade import Facade

pytestmark = pytest.mark.gpu


class Cuda:
    """The driver, its workbench and the graph API bound to it."""

    def __init__(self) -> None:
        self.runtime: Runtime = select("cuda")
        self.driver: Any = self.runtime.driver
        self.device: Any = self.runtime.resolve_device(None)
        self.bench: Any = find_workbench("cuda")(self.runtime, self.device)
        self.facade = Facade(self.bench)

    def native(self, name: str, *arguments: Any) -> Any:
        """One unchecked native call: its result alone."""
        with self.driver.activated(self.device):
            return self.driver.cu.raw(name)(*arguments)[0]

    def works(self, total: Any) -> None:
        """Asserts that a capture made now works; ``total`` is a buffer of 0.0."""
        assert self.bench.read(total) == [0.0]
        made = self.facade.record(lambda: self.bench.add_(total, 1.0))
        made.replay()
        assert self.bench.read(total) == [1.0]

    @contextmanager
    def foreign(self, mode: str = "RELAXED") -> Iterator[Any]:
        """A capture that another library makes, adopted; the block yields it and its stream."""
        stream = self.bench.stream()
        modes = self.driver.native.CUstreamCaptureMode
        self.native(
            "cuStreamBeginCapture", stream.handle, getattr(modes, f"CU_STREAM_CAPTURE_MODE_{mode}")
        )
        with self.bench.on(stream):
            yield self.runtime.graph_adopt(stream, "a test"), stream


@pytest.fixture(scope="module")
def cuda() -> Cuda:
    return Cuda()


# launching


def test_a_thread_that_never_used_the_gpu_replays(cuda: Cuda) -> None:
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


def test_a_launch_on_what_is_no_stream_leaves_the_graph_usable(cuda: Cuda) -> None:
    total = cuda.bench.buffer([0.0])
    made = cuda.facade.record(lambda: cuda.bench.add_(total, 1.0))
    with pytest.raises(TypeError):
        made.replay("stream")
    made.replay()
    assert cuda.bench.read(total) == [1.0]


def test_a_closed_executable_refuses_through_a_bound_replay(cuda: Cuda) -> None:
    total = cuda.bench.buffer([0.0])
    made = cuda.facade.record(lambda: cuda.bench.add_(total, 1.0))
    replay = made.replay
    replay()
    made.close()
    for stream in (None, cuda.bench.stream()):
        with pytest.raises(GraphStateError):
            replay(stream)
    assert cuda.bench.read(total) == [1.0]


def test_closing_waits_for_launches_under_way(cuda: Cuda) -> None:
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


def test_a_replay_inside_a_capture_is_refused_by_name(cuda: Cuda) -> None:
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


def test_raw_handles_are_those_of_the_driver(cuda: Cuda) -> None:
    total = cuda.bench.buffer([0.0])
    made = cuda.facade.record(lambda: cuda.bench.add_(total, 1.0))
    native = cuda.driver.native
    with cuda.driver.activated(cuda.device):
        code, _, count = native.cuGraphGetNodes(native.CUgraph(made.raw_cuda_graph()))
        launched = native.cuGraphLaunch(native.CUgraphExec(made.raw_cuda_graph_exec()), 0)
    assert (int(code), count, int(launched[0])) == (0, 1, 0)
    assert cuda.bench.read(total) == [1.0]


# the driver's own work


def test_streams_and_events_order_work(cuda: Cuda) -> None:
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
def test_memory_is_set_by_element(cuda: Cuda, typestr: str, values: list[float]) -> None:
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


def test_what_takes_a_kernel_is_not_set(cuda: Cuda) -> None:
    array = cuda.driver.buffer([1.0], "<f8")
    for value in (1.5, 2**70):
        with pytest.raises(ArgumentError):
            cuda.driver.memset(cuda.driver.buffer([1], "<i8") if value != 1.5 else array, value)
    assert cuda.driver.read(array) == [1.0]


# what was broken, and how it is said


def test_the_legacy_stream_breaks_a_capture_and_is_named(cuda: Cuda) -> None:
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
def test_an_unsafe_call_breaks_a_capture_and_its_end_says_so(cuda: Cuda, mode: str) -> None:
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


def test_memory_that_is_not_there_is_a_typed_error(cuda: Cuda) -> None:
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


def test_a_graph_that_allows_one_executable_says_so(cuda: Cuda) -> None:
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


# conditionals


def test_a_conditional_stands_anywhere_in_a_graph(cuda: Cuda) -> None:
    """At its beginning, after one node, after two at once: a frontier of 0, 1 and 2."""
    bench = cuda.bench
    left, right, flag = bench.buffer([0.0]), bench.buffer([0.0]), bench.flag(True)
    made = cuda.facade.new()
    with cuda.facade.capture(made):
        with made.if_then(flag):
            bench.add_(left, 1.0)
        with made.if_then(flag):
            bench.add_(right, 1.0)
        side = bench.fork()
        with bench.on(side):
            bench.add_(left, 10.0)
        bench.add_(right, 10.0)
        bench.join(side)
        with made.if_then(flag):
            bench.add_(left, right)
    for value in (True, False):
        bench.write(flag, [float(value)])
        bench.write(left, [0.0])
        bench.write(right, [0.0])
        made.replay()
        assert bench.read(left) == [22.0 if value else 10.0]


def test_work_on_the_parents_stream_while_a_body_is_open_is_refused(cuda: Cuda) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, flag = bench.buffer([0.0]), bench.flag(True)
    with pytest.raises(ConditionalError), cuda.facade.capture(made), made.if_then(flag):
        # The parent's stream, while its body is open.
        root = made._capture
        with bench.on(root.stream):
            bench.add_(total, 1.0)
    made.reset()
    with cuda.facade.capture(made):
        bench.add_(total, 1.0)
    made.replay()
    assert bench.read(total) == [1.0]


def test_a_host_callback_in_a_body_is_named(cuda: Cuda) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, flag = bench.buffer([0.0]), bench.flag(True)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    native = cuda.driver.native
    pointer = native.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value)
    with (
        pytest.raises(OperationRefused) as caught,
        cuda.facade.capture(made, capture_error_mode="relaxed"),
        made.if_then(flag),
    ):
        bench.add_(total, 1.0)
        assert not cuda.native(
            "cuLaunchHostFunc", cuda.driver.handle(None, cuda.device), pointer, 0
        )
    assert "host node" in str(caught.value)
    cuda.works(total)


def test_work_not_joined_in_a_body_is_refused_and_costs_nothing(cuda: Cuda) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, flag = bench.buffer([0.0]), bench.flag(True)
    with pytest.raises(UnjoinedWork), cuda.facade.capture(made), made.if_then(flag):
        bench.add_(total, 1.0)
        side = bench.fork()
        with bench.on(side):
            bench.add_(total, 1.0)
    del side
    made.reset()
    with cuda.facade.capture(made), made.if_then(flag):
        bench.add_(total, 1.0)
    made.replay()
    assert bench.read(total) == [1.0]


def test_a_bounded_loop_needs_no_write_of_its_predicate(cuda: Cuda) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, flag = bench.buffer([0.0]), bench.flag(True)
    with cuda.facade.capture(made), made.while_loop(flag, max_steps=7):
        bench.add_(total, 1.0)
        with made.while_loop(flag, max_steps=2):
            bench.add_(total, 100.0)
    for replays in (1, 2, 3):
        made.replay()
        assert bench.read(total) == [replays * 1407.0]


def test_a_write_to_the_predicate_is_seen_in_nested_bodies(cuda: Cuda) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    count, flag, always = bench.buffer([0.0]), bench.flag(True), bench.flag(True)
    with cuda.facade.capture(made), made.while_loop(flag):
        bench.add_(count, 1.0)
        with made.if_then(always):
            bench.less_(flag, count, 3.0)
    made.replay()
    assert bench.read(count) == [3.0]


def test_a_copy_to_the_predicate_ends_a_loop(cuda: Cuda) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    count, flag, low = bench.buffer([0.0]), bench.flag(True), bench.flag(False)
    with cuda.facade.capture(made), made.while_loop(flag):
        bench.add_(count, 1.0)
        cuda.driver.copy(flag, low)
    made.replay()
    assert bench.read(count) == [1.0]
    bench.write(flag, [1.0])
    other = cuda.facade.new()
    with cuda.facade.capture(other), other.while_loop(flag):
        bench.add_(count, 1.0)
        cuda.driver.memset(flag, 0)
    other.replay()
    assert bench.read(count) == [2.0]


def test_a_sixty_four_bit_index_selects(cuda: Cuda) -> None:
    bench, made = cuda.bench, cuda.facade.new()
    total, index = bench.buffer([0.0]), cuda.driver.buffer([0], "<i8")
    with cuda.facade.capture(made), made.switch(index, 2) as cases:
        for place, case in enumerate(cases):
            with case:
                bench.add_(total, 10.0**place)
    for value in (0, 1, 2, -1, 2**32, 2**32 + 1, -(2**63)):
        cuda.driver.write(index, [value])
        made.replay()
    assert bench.read(total) == [11.0]


@pytest.mark.parametrize("version", [12040, 12080])
def test_an_older_drivers_way_of_if_else_is_the_same(
    cuda: Cuda, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda.driver, "version", version)
    bench, made = cuda.bench, cuda.facade.new()
    total, flag, done = bench.buffer([0.0]), bench.flag(True), bench.flag(True)
    with cuda.facade.capture(made):
        with made.if_else(flag) as (then, other):
            with then:
                bench.add_(total, 1.0)
                # Both samples come before either body, so this does not run the other, too.
                bench.less_(flag, total, -1.0)
            with other:
                bench.add_(total, 10.0)
                bench.less_(flag, total, 1e9)
        with made.if_then(done):
            pass
        with made.if_else(done) as (_, never), never:
            bench.add_(total, 1000.0)
    assert [node.name for node in made.topology.nodes if node.kind == "conditional"] == ["if"] * 5
    for _ in range(2):
        made.replay()
    assert bench.read(total) == [11.0]
    assert bench.read(flag) == [1.0]


# captures of other libraries


def test_a_foreign_capture_takes_conditionals_and_stays_its_owners(cuda: Cuda) -> None:
    bench = cuda.bench
    total, flag = bench.buffer([0.0]), bench.flag(True)
    with cuda.foreign() as (capture, stream):
        bench.add_(total, 1.0)
        assert cuda.runtime.graph_capturing(cuda.device)
        assert cuda.runtime.graph_adopt(stream, "again") is capture
        (body,) = cuda.runtime.conditional_open(capture, ConditionalKind.IF, flag, 1)
        cuda.runtime.conditional_enter(body)
        bench.add_(total, 10.0)
        cuda.runtime.conditional_exit(body)
        with cuda.driver.activated(cuda.device):
            code, graph = cuda.driver.native.cuStreamEndCapture(stream.handle)
    assert not code
    template = cuda.driver.template_of(capture, graph, owner=object())
    assert {node.kind for node in cuda.runtime.graph_topology(template).walk()} == {
        "kernel",
        "conditional",
    }
    executable = cuda.runtime.graph_instantiate(template)
    executable.launch()
    bench.write(flag, [0.0])
    executable.launch()
    assert bench.read(total) == [12.0]
    executable.close()
    template.close()
    assert not cuda.native("cuGraphDestroy", graph)  # The owner's, still whole.


def test_a_foreign_executable_is_launched_on_its_owners_stream(cuda: Cuda) -> None:
    bench = cuda.bench
    total, asked = bench.buffer([0.0]), []
    made = cuda.facade.record(lambda: bench.add_(total, 1.0))
    stream = bench.stream()

    class Owner:
        """A framework with a current stream of its own."""

        def current_stream(self) -> int:
            asked.append(stream.handle)
            return stream.handle

    native = cuda.driver.native
    with cuda.driver.activated(cuda.device):
        _, raw = native.cuGraphInstantiate(native.CUgraph(made.raw_cuda_graph()), 0)
    executable = cuda.runtime.executable_adopt(made._template, int(raw), Owner())
    executable.launch()
    executable.launch()
    executable.close()
    assert bench.read(total) == [2.0]
    assert asked == [stream.handle] * 2
    assert not cuda.native("cuGraphExecDestroy", raw)  # Not destroyed by whoever adopted it.


def test_a_foreign_capture_that_fails_is_unwound_with_its_bodies(cuda: Cuda) -> None:
    bench = cuda.bench
    total, flag, error = bench.buffer([0.0]), bench.flag(True), KeyError("the user's own")
    with cuda.foreign() as (capture, stream):
        bench.add_(total, 1.0)
        (outer,) = cuda.runtime.conditional_open(capture, ConditionalKind.WHILE, flag, 1)
        cuda.runtime.conditional_enter(outer)
        (inner,) = cuda.runtime.conditional_open(outer, ConditionalKind.IF, flag, 1)
        cuda.runtime.conditional_enter(inner)
        bench.add_(total, 1.0)
        cuda.runtime.graph_abort(capture, error)
        assert cuda.runtime.current_stream(cuda.device) == stream.handle
        with cuda.driver.activated(cuda.device):
            code, graph = cuda.driver.native.cuStreamEndCapture(stream.handle)
        cuda.driver.bury(capture, error)
    assert not code
    assert not capture.poisoned
    assert not cuda.native("cuGraphDestroy", graph)
    assert getattr(error, "__notes__", []) == []
    cuda.works(total)


def test_a_stream_that_is_not_capturing_is_not_adopted(cuda: Cuda) -> None:
    for stream in (cuda.bench.stream(), 0):
        with pytest.raises(CaptureError):
            cuda.runtime.graph_adopt(stream, "nobody")


# what a graph tells


def test_topology_names_kernels_copies_and_sizes(cuda: Cuda) -> None:
    bench = cuda.bench
    x, y = bench.buffer([1.0] * 300), bench.buffer([0.0] * 300)
    flag = bench.flag(True)
    made = cuda.facade.new()
    with cuda.facade.capture(made):
        bench.add_(x, 1.0)
        bench.copy_(y, x)
        cuda.driver.memset(x, 0)
        with made.if_then(flag):
            bench.add_(x, y)
    told = made.topology
    kinds = [node.kind for node in told.nodes]
    assert kinds == ["kernel", "memcpy", "memset", "kernel", "conditional"]
    first, copied, filled, setter, branch = told.nodes
    assert first.name == "add_number"
    assert first.attributes["grid"] == (3, 1, 1)
    assert first.attributes["block"] == (128, 1, 1)
    assert copied.attributes["bytes"] == filled.attributes["bytes"] == 1200
    assert setter.name.startswith("tensorplay_set_")
    assert branch.name == "if"
    assert [body.role for body in branch.bodies] == ["then"]
    assert "add_array" in [node.name for node in branch.bodies[0].topology.nodes]
    assert told.edges == ((0, 1), (1, 2), (2, 3), (3, 4))


def test_the_drivers_own_picture_is_text(cuda: Cuda) -> None:
    x = cuda.bench.buffer([1.0])
    made = cuda.facade.record(lambda: cuda.bench.add_(x, 1.0))
    plain = cuda.runtime.graph_dot(made._template, False)
    verbose = cuda.runtime.graph_dot(made._template, True)
    assert plain.startswith("digraph")
    assert len(verbose) >= len(plain)


def test_an_update_says_what_keeps_it_from_its_place(cuda: Cuda) -> None:
    bench = cuda.bench
    total, flag = bench.buffer([0.0]), bench.flag(True)

    def two() -> None:
        bench.add_(total, 1.0)
        bench.add_(total, 1.0)

    made = cuda.facade.record(lambda: bench.add_(total, 1.0))
    assert made.update(cuda.facade.record(lambda: bench.add_(total, 5.0))).in_place
    made.replay()
    assert bench.read(total) == [5.0]
    outcome = made.update(cuda.facade.record(two))
    assert not outcome.in_place
    assert "kernel: 1 before, 2 after" in outcome.reason
    branching = cuda.facade.new()
    with cuda.facade.capture(branching), branching.if_then(flag):
        bench.add_(total, 1.0)
    outcome = made.update(branching)
    assert not outcome.in_place
    assert "conditional" in outcome.reason
    made.replay()
    assert bench.read(total) == [6.0]


def test_an_update_reaches_into_bodies(cuda: Cuda) -> None:
    bench = cuda.bench
    total, flag = bench.buffer([0.0]), bench.flag(True)
    made = []
    for step in (1.0, 10.0):
        one = cuda.facade.new()
        with cuda.facade.capture(one), one.if_then(flag):
            bench.add_(total, step)
        made.append(one)
    outcome = made[0].update(made[1])
    made[0].replay()
    assert bench.read(total) == [10.0], outcome


# staging


def bytes_of(cuda: Cuda, array: Any) -> bytes:
    return struct.pack(f"{array.nbytes}B", *cuda.driver.read(array))


def fresh(cuda: Cuda, size: int, seed: int) -> Any:
    return cuda.driver.buffer([(seed + 7 * place) % 256 for place in range(size)], "|u1")


@pytest.mark.parametrize("conditional", [False, True], ids=["embedded", "beside"])
@pytest.mark.parametrize("count", [1, 4, 5, 16, 100, 160, 161, 256])
def test_any_number_of_inputs_of_any_size_is_staged(
    cuda: Cuda, count: int, conditional: bool
) -> None:
    sizes = [(0, 1, 3, 4, 15, 16, 17, 64, 255)[place % 9] for place in range(count)]
    static = [cuda.driver.empty(size, "|u1") for size in sizes]
    kept = [cuda.driver.empty(size, "|u1") for size in sizes]
    flag, made = cuda.bench.flag(True), cuda.facade.new()
    with cuda.facade.capture(made):
        for one, other in zip(static, kept, strict=True):
            cuda.driver.copy(other, one)
        cuda.bench.less_(flag, cuda.bench_total, 1.0)
        if conditional:
            with made.if_then(flag):
                cuda.bench.add_(cuda.bench_total, 0.0)
    plan = made.stage(static, kept)
    expected, results = [], []
    for step in range(3):
        given = [fresh(cuda, size, step + place) for place, size in enumerate(sizes)]
        expected.append([bytes_of(cuda, one) for one in given])
        results.append(plan(given))
        del given
    for wanted, got in zip(expected, results, strict=True):
        assert [bytes_of(cuda, one) for one in got] == wanted


@pytest.fixture(autouse=True)
def _total(cuda: Cuda) -> None:
    cuda.bench_total = cuda.bench.buffer([0.0])  # type: ignore[attr-defined]


def test_sources_that_are_not_aligned_are_staged(cuda: Cuda) -> None:
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
        made = cuda.facade.record(lambda: cuda.bench.add_(cuda.bench_total, 0.0))
        plan = made.stage([static])
        plan([Part(start, size)])
        assert bytes_of(cuda, holder) == content[start : start + size]


def test_launches_back_to_back_take_their_own_inputs(cuda: Cuda) -> None:
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


def test_inputs_may_be_dropped_and_their_memory_reused_at_once(cuda: Cuda) -> None:
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


def test_inputs_that_alias_each_others_buffers_are_exchanged(cuda: Cuda) -> None:
    bench = cuda.bench
    a, b, c = (bench.buffer([value, -value]) for value in (1.0, 2.0, 3.0))
    made = cuda.facade.record(lambda: bench.add_(cuda.bench_total, 0.0))
    plan = made.stage([a, b, c])
    plan([b, c, a])
    assert [bench.read(one)[0] for one in (a, b, c)] == [2.0, 3.0, 1.0]
    plan([a, a, a])
    assert [bench.read(one)[0] for one in (a, b, c)] == [2.0, 2.0, 2.0]


def test_staged_and_plain_launches_keep_their_order_across_streams(cuda: Cuda) -> None:
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


def test_staging_inside_a_capture_is_refused_and_breaks_nothing(cuda: Cuda) -> None:
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


def test_a_plan_of_a_closed_graph_is_refused(cuda: Cuda) -> None:
    bench = cuda.bench
    x, total = bench.buffer([0.0]), bench.buffer([0.0])
    made = cuda.facade.record(lambda: bench.add_(total, x))
    plan = made.stage([x], [total])
    (before,) = plan([bench.buffer([1.0])])
    made.close()
    with pytest.raises(GraphStateError):
        plan([bench.buffer([1.0])])
    assert bench.read(before) == [1.0]


def test_buffers_that_bytes_cannot_fill_are_left_to_full_copies(cuda: Cuda) -> None:
    bench = cuda.bench
    x, total = bench.buffer([0.0, 0.0]), bench.buffer([0.0, 0.0])
    made = cuda.facade.record(lambda: bench.add_(total, x))
    plan = made.stage([x, x])
    with pytest.raises(SignatureMismatch) as caught:
        plan([bench.buffer([1.0, 1.0])] * 2)
    assert "overlaps" in str(caught.value)


@pytest.mark.slow
def test_more_than_two_gigabytes_are_staged_to_the_last_byte(cuda: Cuda) -> None:
    size = 2**31 + 16 * 1000 + 5
    try:
        x, source = (cuda.driver.empty(size, "|u1") for _ in range(2))
    except PoolExhausted:
        pytest.skip("the device has no 4 GiB free")
    cuda.driver.memset(x, 0)
    cuda.driver.memset(source, 7)
    made = cuda.facade.record(lambda: cuda.bench.add_(cuda.bench_total, 0.0))
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


# ends


def test_nothing_is_left_behind(cuda: Cuda) -> None:
    bench = cuda.bench
    gc.collect()
    reclaim.drain()
    before, serials = bench.live_bytes(), len(cuda.driver.captures)
    for _ in range(20):
        x, total, flag = bench.buffer([1.0]), bench.buffer([0.0]), bench.flag(True)
        made = cuda.facade.new()
        with cuda.facade.capture(made):
            y = bench.double(x)
            with made.while_loop(flag, max_steps=3):
                bench.add_(total, bench.double(y))
        made.replay()
        made.stage([x], [total])([bench.buffer([2.0])])
        assert bench.read(total) == [36.0]
        made.close()
        del made, x, y, total, flag
    assert bench.live_bytes() == before
    assert len(cuda.driver.captures) == serials
    assert cuda.driver._unclaimed == {}


def test_an_object_kept_by_a_graph_lives_until_its_last_launch(cuda: Cuda) -> None:
    class Kept:
        """Something whose end can be seen."""

    total, kept = cuda.bench.buffer([0.0]), [Kept()]
    seen = weakref.ref(kept[0])
    function = cuda.bench._functions["add_number"]
    made = cuda.facade.record(
        lambda: cuda.driver.launch(function, 1, 1, (total, 1.0, 1), keep=kept)
    )
    kept.clear()
    gc.collect()
    assert seen() is not None
    made.replay()
    made.close()
    assert seen() is None
    assert cuda.bench.read(total) == [1.0]


def test_a_module_may_go_while_a_graph_launches_it(cuda: Cuda) -> None:
    from tensorplay_core.drivers.cuda.workbench import work_ptx

    total = cuda.bench.buffer([0.0])
    made = cuda.facade.new()
    with cuda.facade.capture(made):
        function = cuda.driver.module(work_ptx()).function("add_number")
        cuda.driver.launch(function, 1, 1, (total, 2.0, 1))
        del function
    gc.collect()
    made.replay()
    assert cuda.bench.read(total) == [2.0]
