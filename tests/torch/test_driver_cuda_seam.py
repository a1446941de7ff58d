"""The seam between torch's CUDA graphs and core's CUDA driver, with both played by stand-ins.

What runs on a machine without a GPU: the order of calls, above all when something breaks. What the
calls do is for ``test_driver_cuda.py``, on a machine with a GPU.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from tensorplay_core import CUDAGraph as CoreGraph
from tensorplay_core import graph as capture
from tensorplay_core import reclaim
from tensorplay_core import runtime as runtimes
from tensorplay_core.errors import (
    CaptureError,
    CaptureInvalidated,
    DriverCallFailed,
    GraphStateError,
    OperationRefused,
    UnjoinedWork,
    UnsupportedByDriver,
)
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import Update
from tensorplay_core.runtime import Runtime
from tensorplay_core.topology import Node, Topology
from tensorplay_torch import _private
from tensorplay_torch.cuda import unwind as cuda_unwind
from tensorplay_torch.driver import load
from tensorplay_torch.resources import generators
from tensorplay_torch.tracking import turns

GPU = torch.device("cuda", 0)


class Stream:
    """A stand-in for torch.cuda.Stream and ExternalStream."""

    serial = 100

    def __init__(self, handle=None, device=None, **_):
        if handle is None or isinstance(handle, torch.device):
            Stream.serial += 1
            handle = Stream.serial
        self.cuda_stream, self.device = handle, GPU

    def __repr__(self):
        return f"stream {self.cuda_stream}"

    def __cuda_stream__(self):
        return (0, self.cuda_stream)


class World:
    """What torch and the CUDA driver would keep: the streams, the pools, what was called."""

    def __init__(self):
        self.log = []
        self.current = 0
        self.capturing = set()
        self.broken = set()
        self.serial = 0
        self.begun = Counter()
        self.routes = []
        self.generator = SimpleNamespace(offset=0, device=GPU, _cdata=1)
        self.generator.get_offset = lambda: self.generator.offset
        self.refuse_begin = self.draws = False
        self.live = 512
        self.end_error = "operation failed due to a previous error during capture"

    def note(self, *what):
        self.log.append(what if len(what) > 1 else what[0])

    def since(self, place):
        return self.log[place:]

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream.cuda_stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self, *_):
        if self.capturing:
            self.broken |= self.capturing
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self.note("synchronize")

    def handle(self):
        self.serial += 1
        return (0, self.serial)

    def segments(self, native):
        """Of a pool in which something of a graph's is still alive, if not told otherwise."""
        return [{"device": 0, "total_size": 2 << 20, "active_size": self.live}]

    def begin_route(self, index, native):
        assert native not in self.routes, "already recording to mempool_id"
        self.routes.append(native)
        self.begun[native] += 1

    def end_route(self, index, native):
        if native not in self.routes:
            raise RuntimeError("not currently recording to mempool_id")
        self.routes.remove(native)
        self.note("end route")

    def release(self, index, native):
        self.begun[native] -= 1
        assert self.begun[native] >= 0
        self.note("release pool")


def graph_class(world):
    class Graph:
        def __init__(self, keep_graph=False):
            self.stream = self.native = None
            self.ended = self.dead = False
            self.registered = []

        def register_generator_state(self, one):
            self.registered.append(one)

        def capture_begin(self, pool=None, capture_error_mode="global"):
            if world.refuse_begin:
                raise RuntimeError("CUDA error: out of memory")
            self.native = pool or world.handle()
            world.begin_route(0, self.native)
            self.stream = world.current
            world.capturing.add(self.stream)
            world.note("capture_begin")

        def capture_end(self):
            assert world.current == self.stream
            if self.stream in world.broken:
                # As torch up to 2.13: nothing is undone.
                world.capturing.discard(self.stream)
                world.broken.discard(self.stream)
                raise RuntimeError(f"CUDA error: {world.end_error}")
            world.capturing.discard(self.stream)
            world.routes.remove(self.native)
            self.ended = True
            world.note("capture_end")

        def raw_cuda_graph(self):
            return 7

        def instantiate(self):
            world.note("instantiate")

        def raw_cuda_graph_exec(self):
            return 8

        def replay(self):
            assert not self.dead
            world.note("torch replay", world.current)
            if world.draws:
                world.generator.offset += 4

        def reset(self):
            if self.ended:
                world.release(0, self.native)
            self.ended, self.dead = False, True
            world.note("reset")

    return Graph


class NoGaps:
    """A capture without foreign work."""

    def look(self):
        pass

    def pass_over(self):
        pass

    def __bool__(self):
        return False


class Native:
    """A stand-in for core's CUDA driver: what the torch driver asks of it."""

    def __init__(self, world):
        self.world = world
        self.poison = ""

    @hookimpl
    def tensorplay_resolve_device(self, device):
        return device

    @hookimpl
    def tensorplay_pool_create(self, device):
        return SimpleNamespace(id=("cuda", id(self)), device=device)

    @hookimpl
    def tensorplay_side_stream(self, device, pool):
        return Stream()

    @hookimpl
    def tensorplay_resolve_stream(self, stream, device):
        return stream if isinstance(stream, int) else stream.__cuda_stream__()[1]

    @hookimpl
    def tensorplay_graph_adopt(self, stream, owner):
        assert stream in self.world.capturing
        return SimpleNamespace(
            device=0, stream=stream, parent=None, poisoned="", bodies=[], buried=False
        )

    @hookimpl
    def tensorplay_graph_abort(self, capture, error):
        self.world.note("abort bodies")
        for body in capture.bodies:
            self.world.capturing.discard(body.stream)
        if capture.bodies and self.poison:
            capture.poisoned = self.poison

    def gaps(self, capture):
        return NoGaps()

    def bury(self, capture, error=None):
        self.world.note("bury")
        capture.buried = True

    def is_capturing(self, handle):
        return handle in self.world.capturing

    def template_of(self, capture, graph, owner, device):
        return SimpleNamespace(
            node_count=1,
            functions=lambda: self.functions,
            close=lambda: self.world.note("close template"),
        )

    functions = None

    once_only = False

    def make_executable(self, template, raw=None, owner=None, current=None):
        if raw is None:
            if self.once_only:
                raise DriverCallFailed(
                    call="cuGraphInstantiate",
                    code=801,
                    code_name="CUDA_ERROR_NOT_SUPPORTED",
                    meaning="no",
                    subject="a graph",
                    remedy="Do without.",
                )
            self.world.serial += 1
            raw = 1000 + self.world.serial
            self.world.note("instantiate beside")

        def native(executable, target):
            self.world.note("direct launch", target)
            return (0,)

        def launch(stream=None):
            where = current() if stream is None else stream
            made.call(raw, getattr(where, "cuda_stream", where))

        def close(idle=False):
            self.world.note("end idle" if idle else "drain")

        made = SimpleNamespace(
            launch=launch,
            call=native,
            divert=lambda call: setattr(made, "call", call or native),
            upload=lambda stream=None: self.world.note("upload"),
            raw=lambda: raw,
            close=close,
        )
        return made

    @hookimpl
    def tensorplay_graph_topology(self, template):
        return Topology(nodes=(Node(index=0, kind="kernel", name=self.kernel),))

    kernel = "add"

    @hookimpl
    def tensorplay_graph_update(self, executable, template):
        self.world.note("update")
        return Update(in_place=True)

    @hookimpl
    def tensorplay_conditional_open(self, capture, kind, predicate, branches, first, max_steps):
        return tuple(SimpleNamespace(parent=capture, stream=0, of=capture) for _ in range(branches))

    @hookimpl
    def tensorplay_conditional_enter(self, body):
        body.stream = body.lane.cuda_stream
        root = body.of
        while getattr(root, "of", None) is not None:
            root = root.of
        root.bodies.append(body)
        self.world.capturing.add(body.stream)
        self.world.note("enter body")

    @hookimpl
    def tensorplay_conditional_exit(self, body):
        self.world.capturing.discard(body.stream)
        self.world.note("exit body")


@pytest.fixture
def world(monkeypatch):
    world = World()
    cuda = torch.cuda
    for name, value in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": lambda index: nullcontext(),
        "stream": world.stream,
        "synchronize": world.synchronize,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (1, 4),
        "memory_snapshot": lambda native, **_: world.segments(native),
        "is_current_stream_capturing": lambda: world.current in world.capturing,
        "graph_pool_handle": world.handle,
        "Stream": Stream,
        "ExternalStream": Stream,
        "CUDAGraph": graph_class(world),
        "default_generators": (world.generator,),
        "current_stream": lambda device=None: SimpleNamespace(cuda_stream=world.current),
        "default_stream": lambda device=None: Stream(0),
    }.items():
        monkeypatch.setattr(cuda, name, value)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.empty(1))
    for name, value in {
        "current_raw_stream": lambda index: world.current,
        "begin_allocate_stream": world.begin_route,
        "begin_allocate_thread": world.begin_route,
        "end_allocate": world.end_route,
        "release_pool": world.release,
        "host_empty_cache": lambda: None,
    }.items():
        monkeypatch.setitem(_private.PRIVATE, name, _private.Private(value, "nothing"))
    monkeypatch.setattr(generators, "TAKES_IN_ANY", False)
    monkeypatch.setattr(generators, "_keepers", {}, raising=False)
    plugin = load()
    world.native = Native(world)
    plugin.bases._runtimes["cuda"] = Runtime(world.native, name="cuda")
    world.runtime = Runtime(plugin, name="torch")
    monkeypatch.setitem(runtimes._selected, "seam", world.runtime)
    yield world
    assert world.current == 0
    assert not world.capturing
    assert not world.routes
    assert reclaim.captures_live() == 0
    assert turns._taker is None


class Graph(CoreGraph):
    driver = "seam"


UNTRACKED = {"track_operands": False}


def captured(world, **options):
    g = Graph(device=0)
    with capture(g, **{**UNTRACKED, **options}):
        pass
    return g


def works_again(world):
    """The next capture and its end go as they should, and give back all they took."""
    world.broken.clear()
    world.refuse_begin = False
    before = +world.begun
    g = captured(world)
    g.replay()
    g.close()
    assert +world.begun == before


def test_the_first_replay_is_torchs_and_later_ones_are_direct(world):
    g = captured(world)
    place = len(world.log)
    for _ in range(3):
        g.replay()
    assert world.since(place) == [("torch replay", 0), ("direct launch", 0), ("direct launch", 0)]


def test_a_graph_that_draws_is_always_torchs(world):
    world.draws = True
    g = captured(world)
    place = len(world.log)
    for _ in range(3):
        g.replay()
    assert world.since(place) == [("torch replay", 0)] * 3


def test_where_a_generator_may_be_missed_replays_stay_torchs(world, monkeypatch):
    monkeypatch.setattr(generators, "TAKES_IN_ANY", True)
    unseen, seen = captured(world), captured(world, track_operands=True)
    place = len(world.log)
    for g in (unseen, seen):
        g.replay()
        g.replay()
    assert world.since(place) == [("torch replay", 0)] * 3 + [("direct launch", 0)]


def test_an_explicit_stream_is_made_current_around_torchs_replay_only(world):
    g = captured(world)
    place = len(world.log)
    chosen = Stream(55)
    g.replay(chosen)
    g.replay(chosen)
    g.replay(56)
    assert world.since(place) == [
        ("torch replay", 55),
        ("direct launch", 55),
        ("direct launch", 56),
    ]


def test_an_undecided_graph_is_not_replayed_inside_a_capture(world):
    g = captured(world)
    with (
        capture(Graph(device=0), **UNTRACKED),
        pytest.raises(GraphStateError, match="random generators"),
    ):
        g.replay()
    g.replay()


def test_a_closed_graph_frees_torchs_after_the_launches_are_drained(world):
    g = captured(world)
    replay = g.replay
    g.replay()
    place = len(world.log)
    g.close()
    ended = world.since(place)
    assert ended.index("drain") < ended.index("reset")
    assert not +world.begun
    with pytest.raises(GraphStateError):
        g.replay()
    del replay


@pytest.mark.parametrize("use", ["nothing", "upload", "raw_cuda_graph_exec"])
def test_what_was_never_launched_is_not_waited_for(world, use):
    g = captured(world)
    if use != "nothing":
        getattr(g, use)()
    place = len(world.log)
    g.close()
    assert ("end idle" in world.since(place)) == (use == "nothing")
    assert ("drain" in world.since(place)) == (use != "nothing")


def several(world, count=3, **options):
    """Executables of one template, below the facade."""
    g = Graph(device=0, keep_graph=True)
    with capture(g, **options):
        pass
    return g, [world.runtime.graph_instantiate(g._template) for _ in range(count)]


def test_a_graph_that_is_known_not_to_draw_has_several_executables(world):
    g, (first, second, third) = several(world, track_operands=True)
    place = len(world.log)
    for one in (second, first, third, second, first):
        one.launch()
    direct = ("direct launch", 0)
    assert world.since(place) == [direct, ("torch replay", 0), direct, direct, direct]
    assert len({one.raw() for one in (first, second, third)}) == 3
    first.close()
    second.launch()
    for one in (second, third):
        one.close()
    g.close()
    assert not +world.begun


def test_a_launch_tells_as_well_that_nothing_is_drawn(world):
    g, (first,) = several(world, 1, **UNTRACKED)
    first.launch()
    second = world.runtime.graph_instantiate(g._template)
    for one in (first, second):
        one.launch()
        one.close()
    g.close()


@pytest.mark.parametrize("why", ["unknown", "draws", "conditionals"])
def test_torch_has_one_executable_where_it_must_be_torchs(world, why):
    world.draws = why == "draws"
    world.native.once_only = why == "conditionals"
    g, (first,) = several(world, 1, track_operands=why != "unknown")
    if why == "draws":
        first.launch()
    second = world.runtime.graph_instantiate(g._template)
    with pytest.raises(GraphStateError, match="closed"):
        first._through_torch(8, 0)
    second.launch()
    second.close()
    g.close()
    assert not +world.begun


def test_a_kept_graph_instantiates_anew_and_retires_what_was(world):
    g = Graph(device=0, keep_graph=True)
    with capture(g, **UNTRACKED):
        pass
    g.replay()
    old = g._executable
    g.instantiate()
    assert old._closed
    with pytest.raises(GraphStateError, match="closed"):
        old._through_torch(8, 0)
    g.replay()
    g.close()
    assert not +world.begun


# updates


def test_an_update_in_place_needs_to_know_that_nothing_is_drawn(world):
    first, second = captured(world), captured(world)
    assert "never replayed" in first.update(second).reason
    first, second = captured(world), captured(world)
    first.replay()
    assert first.update(second).in_place
    world.draws = True
    third, fourth = captured(world), captured(world)
    third.replay()
    assert "draws random numbers" in third.update(fourth).reason
    for g in (first, third):
        g.close()
    assert not +world.begun


def test_an_update_by_other_kernels_unseen_is_not_in_place(world):
    first, second = captured(world), captured(world)
    first.replay()
    names = iter(["dropout", "add"])
    type(world.native).kernel = property(lambda self: next(names))
    try:
        assert "may draw" in first.update(second).reason
    finally:
        type(world.native).kernel = "add"


def test_an_update_by_the_same_functions_reads_no_names(world):
    first, second, third = captured(world), captured(world), captured(world)
    first.replay()
    type(world.native).functions = (7, 7)
    type(world.native).kernel = property(lambda self: pytest.fail("names were read"))
    try:
        assert first.update(second).in_place
        assert first.update(third).in_place
    finally:
        type(world.native).functions, type(world.native).kernel = None, "add"


@torch.library.custom_op("seam::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)  # Below the operation, where no dispatch mode looks.


@pytest.mark.parametrize(
    ("work", "drew"),
    [(torch.relu, False), (torch.rand_like, True), (opaque, None)],
    ids=["none", "drawn", "unknown"],
)
def test_only_work_that_was_seen_whole_is_known_not_to_draw(world, work, drew):
    g, x = Graph(device=0), torch.ones(3)
    with capture(g):
        work(x)
    assert g._template.captured.watch.drew is drew


def test_repeated_updates_keep_the_last_and_give_back_the_rest(world):
    g = captured(world)
    g.replay()
    for _ in range(4):
        assert g.update(captured(world)).in_place
    # The capture whose executable it is, and the last one.
    assert sum((+world.begun).values()) == 2
    g.close()
    assert not +world.begun


# failures


def test_a_block_that_raises_is_unwound_and_its_exception_is_on_top(world):
    with pytest.raises(KeyError, match="mine") as caught, capture(Graph(device=0), **UNTRACKED):
        place = len(world.log)
        raise KeyError("mine")
    assert caught.value.__cause__ is None
    # The driver beneath was asked for nothing: there is nothing of it to abort.
    assert world.since(place) == ["capture_end", "release pool", "reset"]
    assert not +world.begun
    works_again(world)


def test_a_broken_capture_gives_back_its_pool_and_frees_the_generators(world):
    with pytest.raises(KeyError) as caught, capture(Graph(device=0), **UNTRACKED):
        world.broken.add(world.current)
        raise KeyError
    assert any("ending torch's capture met RuntimeError" in n for n in caught.value.__notes__)
    assert not +world.begun
    # A capture that succeeds, after the broken one, is what frees torch's generators.
    assert world.log.index("end route") < max(
        place for place, what in enumerate(world.log) if what == "capture_end"
    )
    works_again(world)


def test_what_broke_is_said_at_the_end_of_the_block(world):
    with (
        pytest.raises(CaptureInvalidated, match="previous error") as caught,
        capture(Graph(device=0), **UNTRACKED),
    ):
        world.broken.add(world.current)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "thread_local" in caught.value.remedy
    assert not +world.begun
    works_again(world)


def test_torchs_word_for_a_broken_capture_leaves_the_block_as_an_error_of_the_tree(world):
    said = torch.AcceleratorError("CUDA error: no.\nSearch for `cudaErrorStreamCaptureUnsupported'")
    with (
        pytest.raises(CaptureInvalidated, match=f"{__file__}:") as caught,
        capture(Graph(device=0), **UNTRACKED),
    ):
        world.broken.add(world.current)
        raise said
    assert caught.value.__cause__ is said
    assert any("was discarded" in note for note in said.__notes__)
    assert not +world.begun
    works_again(world)


def test_a_fork_that_was_not_joined_is_said_to_be_that(world):
    world.end_error = "capturing stream has unjoined work"
    with pytest.raises(UnjoinedWork), capture(Graph(device=0), **UNTRACKED):
        world.broken.add(world.current)
    works_again(world)


def test_a_capture_that_cannot_begin_changes_nothing(world):
    world.refuse_begin = True
    with pytest.raises(Exception, match="out of memory") as caught:
        Graph(device=0).capture_begin()
    assert caught.value.call == "cudaStreamBeginCapture"
    works_again(world)


def test_what_fails_after_torch_has_begun_is_undone(world, monkeypatch):
    def fail(stream, owner):
        raise RuntimeError("no adoption")

    base = world.runtime.driver.bases("cuda")
    with monkeypatch.context() as patch:
        patch.setattr(base, "graph_adopt", fail)
        with pytest.raises(RuntimeError, match="no adoption"):
            Graph(device=0).capture_begin()
    assert not +world.begun
    works_again(world)


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_default_streams_do_not_capture_and_are_not_remembered(world, handle):
    pool = world.runtime.pool_create(GPU)
    with pytest.raises(CaptureError, match="default stream"):
        Graph(device=0).capture_begin(pool.id, stream=Stream(handle))
    assert pool.stream is None


def test_a_second_capture_is_refused_before_anything_waits(world):
    with capture(Graph(device=0), **UNTRACKED):
        place = len(world.log)
        with pytest.raises(CaptureError, match="capturing already"):
            Graph(device=0).capture_begin(stream=Stream(77))
        with world.stream(Stream(88)), pytest.raises(CaptureError, match="another capture"):
            Graph(device=0).capture_begin(stream=Stream(77))
        assert world.since(place) == []


def test_the_users_graph_of_torch_is_not_disturbed(world):
    theirs = torch.cuda.CUDAGraph()
    with world.stream(Stream(99)):
        theirs.capture_begin()
        place = len(world.log)
        with pytest.raises(CaptureError, match="capturing already"):
            Graph(device=0).capture_begin()
        assert world.since(place) == []
        theirs.capture_end()
    theirs.reset()


# streams and pools


def test_a_pool_has_one_stream_and_another_is_honoured_with_one_warning(world):
    pool, ran = world.runtime.pool_create(GPU), []

    def record(stream=None):
        g = Graph(device=0)
        with capture(g, pool.id, stream, **UNTRACKED):
            ran.append(world.current)
        return g

    kept = [record(), record()]
    assert ran[0] == ran[1]
    chosen = Stream(77)
    with pytest.warns(RuntimeWarning, match="reuses memory within one stream"):
        kept.append(record(chosen))
    kept.append(record(chosen))  # Once is enough: warnings are errors here.
    assert ran[2:] == [77, 77]


def test_the_first_stream_named_for_a_pool_becomes_its_own(world):
    pool, ran = world.runtime.pool_create(GPU), []
    kept = []
    for stream in (Stream(66), None):
        kept.append(Graph(device=0))
        with capture(kept[-1], pool.id, stream, **UNTRACKED):
            ran.append(world.current)
    assert ran == [66, 66]


def test_streams_go_back_with_their_pool_and_serve_again(world):
    ran = []
    for _ in range(5):
        g = Graph(device=0)
        with capture(g, **UNTRACKED):
            ran.append(world.current)
        g.close()
    assert len(set(ran)) == 1
    first, second = captured(world), captured(world)
    streams = [g._shared_pool.pool.stream.cuda_stream for g in (first, second)]
    assert streams[0] != streams[1]


def test_a_pool_that_is_held_between_captures_serves_the_next(world):
    """As groups of callables do: torch refuses an id whose captures are all gone."""
    from tensorplay_core.pool import acquire

    held = acquire(world.runtime, None, GPU)
    natives = []
    for broken in (False, False, True, False, False):
        g = Graph(device=0)
        if broken:
            with pytest.raises(CaptureInvalidated), capture(g, held, **UNTRACKED):
                world.broken.add(world.current)
        else:
            with capture(g, held, **UNTRACKED):
                natives.append(world.routes[-1])
            g.close()
            assert world.begun[natives[-1]] == 1
    # torch goes on taking a broken capture for under way, and would refuse its id.
    assert natives[0] == natives[1] != natives[2] == natives[3]
    held.release()
    assert not +world.begun


def test_an_aborted_capture_keeps_the_id_of_a_held_pool_good(world):
    from tensorplay_core.pool import acquire

    held = acquire(world.runtime, None, GPU)
    for _ in range(3):
        with pytest.raises(KeyError), capture(Graph(device=0), held, **UNTRACKED):
            raise KeyError
        assert sum((+world.begun).values()) == 1
    held.release()
    assert not +world.begun


# spares


def cycle(world):
    """Captures and closes; returns the stream, the id in torch and the id that users see."""
    g = Graph(device=0)
    with capture(g, **UNTRACKED):
        found = world.current, world.routes[-1], g._shared_pool.pool.id
    g.replay()
    g.close()
    return found


def test_an_idle_pool_goes_to_the_next_graph_under_another_name(world):
    world.live = 0
    (stream, native, _), *others = seen = [cycle(world) for _ in range(4)]
    assert all(one[:2] == (stream, native) for one in others)
    assert len({id for *_, id in seen}) == 4
    assert world.begun[native] == 1
    world.live = 512  # Somebody has kept a tensor of the last one.
    assert cycle(world)[:2] == (stream, native)
    assert not +world.begun
    assert cycle(world)[1] != native


def test_one_pool_is_kept_and_a_second_has_its_own(world):
    world.live = 0
    first, second = captured(world), captured(world)
    assert first._shared_pool.pool.native != second._shared_pool.pool.native
    first.close()
    second.close()
    assert sum((+world.begun).values()) == 1
    third, fourth = captured(world), captured(world)
    streams = [g._shared_pool.pool.stream.cuda_stream for g in (third, fourth)]
    assert streams[0] != streams[1]


def test_a_capture_that_fails_in_a_kept_pool_leaves_it_or_loses_it(world):
    world.live = 0
    _, native, _ = cycle(world)
    with pytest.raises(KeyError), capture(Graph(device=0), **UNTRACKED):
        assert world.routes == [native]
        raise KeyError
    assert cycle(world)[1] == native
    with pytest.raises(CaptureInvalidated), capture(Graph(device=0), **UNTRACKED):
        world.broken.add(world.current)
    world.live = 512
    assert cycle(world)[1] != native
    assert not +world.begun


def test_a_large_pool_is_not_kept(world, monkeypatch):
    monkeypatch.setattr(
        world, "segments", lambda native: [{"device": 0, "total_size": 3 << 20, "active_size": 0}]
    )
    cycle(world)
    assert not +world.begun


def test_a_pool_on_a_stream_of_the_users_is_not_kept_for_others(world):
    world.live = 0
    g = Graph(device=0)
    with capture(g, stream=Stream(66), **UNTRACKED):
        pass
    g.close()
    assert not +world.begun


# bodies


def flag():
    # The stand-in for a Bool on the device: checks of it are for where there is one.
    return torch.tensor(True)


@pytest.fixture(autouse=True)
def any_predicate(monkeypatch):
    from tensorplay_torch.cuda import bodies as cuda_bodies

    monkeypatch.setattr(cuda_bodies, "checked", lambda predicate, kind, device: predicate)


def test_a_body_runs_on_a_stream_and_from_memory_of_its_own(world):
    g = Graph(device=0)
    with capture(g, **UNTRACKED):
        outer = world.current
        with g.if_then(flag()):
            assert world.current not in (outer, 0)
            routes = list(world.routes)
            assert len(routes) == 3
            with g.if_then(flag()):
                assert len(set(world.routes)) == 5
            assert world.routes == routes
        assert world.current == outer
        assert len(world.routes) == 1
    g.close()
    assert not +world.begun


def test_bodies_of_one_depth_share_a_stream_and_memory(world):
    g, ran = Graph(device=0), []
    with capture(g, **UNTRACKED):
        with g.if_else(flag()) as (then, other):
            with then:
                ran.append((world.current, world.routes[-2:]))
            with other:
                ran.append((world.current, world.routes[-2:]))
        with g.if_then(flag()):
            ran.append((world.current, world.routes[-2:]))
    assert ran[0] == ran[1] == ran[2]
    g.close()
    assert not +world.begun


def test_a_failing_body_is_left_before_anything_is_ended(world):
    g = Graph(device=0)
    with pytest.raises(KeyError), capture(g, **UNTRACKED), g.if_then(flag()), g.if_then(flag()):
        place = len(world.log)
        raise KeyError
    ended = world.since(place)
    assert ended[:4] == ["end route"] * 4
    assert ended[4:7] == ["abort bodies", "capture_end", "bury"]
    assert not +world.begun
    works_again(world)


def test_a_poisoned_graph_is_never_destroyed_but_gives_its_memory_back(world):
    world.native.poison = "a conditional body was invalidated"
    g = Graph(device=0)
    with pytest.raises(KeyError), capture(g, **UNTRACKED), g.if_then(flag()):
        place, lane = len(world.log), world.current
        raise KeyError
    assert "reset" not in world.since(place)
    assert not +world.begun
    world.native.poison = ""
    works_again(world)
    # Nobody may capture on the stream of the body that broke.
    g, ran = Graph(device=0), []
    with capture(g, **UNTRACKED), g.if_then(flag()):
        ran.append(world.current)
    assert ran != [lane]


def test_a_body_that_cannot_route_is_closed_again(world, monkeypatch):
    missing = _private.Private(None, "bodies cannot allocate")
    monkeypatch.setitem(_private.PRIVATE, "begin_allocate_thread", missing)
    g = Graph(device=0)
    with (
        pytest.raises(UnsupportedByDriver, match="bodies cannot allocate"),
        capture(g, **UNTRACKED),
        g.if_then(flag()),
    ):
        pytest.fail("the body was entered")
    assert "exit body" in world.log
    assert not +world.begun


@pytest.mark.parametrize("tracked", [True, False])
def test_random_numbers_in_a_body_are_refused_with_and_without_tracking(world, tracked):
    g, x = Graph(device=0), torch.ones(3)
    with (
        pytest.raises(OperationRefused, match="random numbers cannot be drawn"),
        capture(g, track_operands=tracked),
        g.if_then(flag()),
    ):
        torch.rand_like(x)
    works_again(world)


def test_host_memory_that_a_body_uses_is_kept(world):
    g, x = Graph(device=0), torch.ones(3)
    storage = x.untyped_storage()
    with capture(g, **UNTRACKED), g.if_then(flag()):
        x + 1
    kept = g._template.captured.watch._random.kept
    assert any(one is storage for one in kept)
    g.close()
    assert not kept


def test_nothing_that_torch_failed_to_end_is_let_go(world):
    before = len(cuda_unwind._broken)
    with pytest.raises(CaptureInvalidated), capture(Graph(device=0), **UNTRACKED):
        world.broken.add(world.current)
    assert len(cuda_unwind._broken) == before + 1
