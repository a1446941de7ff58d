"""Captures and what goes with them, on stand-ins for the driver beneath: lanes, plans, memory."""

from __future__ import annotations

import contextlib
import gc
import types
import weakref

import cupy
import pytest

from tensorplay_core.errors import OperationRefused, PoolError, PoolMismatch
from tensorplay_core.protocols import CaptureOptions
from tensorplay_cupy import captures, driver
from tensorplay_cupy.captures import CupyBody, CupyCapture
from tensorplay_cupy.memory import PoolAllocator
from tensorplay_cupy.plans import Plans


def inner(stream):
    return types.SimpleNamespace(device=0, stream=stream)


def capture(stream=100):
    return CupyCapture(0, inner(stream), None, CaptureOptions())


# lanes


def test_a_body_takes_its_turn_in_the_lane_of_its_parent():
    root = capture()
    body = CupyBody(root, inner(200))
    nested = CupyBody(body, inner(300))
    assert root.lane(100) == body.lane(200) == nested.lane(300)
    assert nested.root is body.root is root


def test_forked_streams_have_lanes_of_their_own_whatever_their_handles():
    root = capture()
    one, two = CupyBody(root, inner(200)), CupyBody(root, inner(200))
    lanes = {root.lane(100), root.lane(101), root.lane(102), one.lane(101), two.lane(101)}
    assert len(lanes) == 5


def test_a_thread_is_in_its_own_captures():
    assert captures.innermost() is None
    assert captures.outermost() is None
    root = capture()
    body = CupyBody(root, inner(200))
    with captures._entered(root), captures._entered(body):
        assert captures.innermost() is body
        assert captures.outermost() is root
    assert captures.innermost() is None


def test_leaving_goes_on_past_what_fails_and_notes_it():
    root = capture()
    body = CupyBody(root, inner(200))
    root.bodies.append(body)
    left, notes = [], []

    def fail():
        raise IndexError("pop from empty list")

    root.undo.callback(left.append, "root")
    body.undo.callback(left.append, "body")
    body.undo.callback(fail)
    root.leave(notes.append)
    assert left == ["body", "root"]
    assert "IndexError" in notes[0]
    assert not root.bodies


# plans


class Plan:
    """A cuFFT plan."""

    gpus = None


def plan_key(size=8):
    return (size, 41, 1, None)


def test_a_capture_takes_a_plan_out_of_the_cache_and_keeps_it():
    plan, plans = Plan(), Plans()
    cache = {plan_key(): plan}
    assert plans.take(cache, plan_key(), "lane") is plan
    assert not cache
    assert plans.take(cache, plan_key(), "lane") is plan
    assert plans.taken == [plan]


def test_a_plan_that_is_not_cached_is_refused_by_name():
    with pytest.raises(OperationRefused) as caught:
        Plans().take({}, plan_key(), "lane")
    assert "cuFFT" in caught.value.operation
    assert "before the capture" in caught.value.remedy
    assert caught.value.where.startswith(__file__)


def test_a_plan_serves_one_lane():
    plans, cache = Plans(), {plan_key(): Plan()}
    plans.take(cache, plan_key(), "lane")
    with pytest.raises(OperationRefused):
        plans.take(cache, plan_key(), "another")


def test_plans_that_cannot_be_made_anew_are_left_and_refused():
    spanning = Plan()
    spanning.gpus = [0, 1]
    for key, plan in ((plan_key(), spanning), ((*plan_key(), "load", "store", 0, 0), Plan())):
        cache = {key: plan}
        with pytest.raises(OperationRefused) as caught:
            Plans().take(cache, key, "lane")
        assert "g.retain" in caught.value.remedy
        assert cache == {key: plan}


def test_a_discarded_capture_gives_its_plans_back():
    plan, plans = Plan(), Plans()
    cache = {plan_key(): plan}
    plans.take(cache, plan_key(), "lane")
    plans.settle(kept=False)
    assert cache == {plan_key(): plan}
    assert not plans.taken


def test_a_kept_plan_is_followed_by_a_fresh_one(monkeypatch):
    made = []

    def fresh(*arguments, **named):
        made.append((arguments, named))
        return Plan()

    monkeypatch.setitem(vars(cupy.cuda), "cufft", types.SimpleNamespace(Plan1d=fresh, PlanNd=fresh))
    nd = ((8, 8), None, 1, 64, None, 1, 64, 41, 1, "C", 1, 8)
    one, two, plans = Plan(), Plan(), Plans()
    cache = {plan_key(): one, nd: two}
    plans.take(cache, plan_key(), "lane")
    plans.take(cache, nd, "lane")
    plans.settle(kept=True)
    assert made == [((8, 41, 1), {"devices": None}), (nd, {})]
    assert set(cache) == {plan_key(), nd}
    assert cache[plan_key()] is not one
    assert cache[nd] is not two


def test_no_room_for_a_fresh_plan_is_no_error(monkeypatch, caplog):
    def full(*_, **__):
        raise cupy.cuda.memory.OutOfMemoryError(1, 2)

    monkeypatch.setitem(vars(cupy.cuda), "cufft", types.SimpleNamespace(Plan1d=full))
    cache, plans = {plan_key(): Plan()}, Plans()
    plans.take(cache, plan_key(), "lane")
    plans.settle(kept=True)
    assert not cache
    assert "no fresh cuFFT plan" in caplog.text


# memory


class Block:
    """Memory of the driver beneath."""

    def __init__(self, address):
        self.__cuda_array_interface__ = {"data": (address, False)}


class Beneath:
    """The driver beneath, which remembers the stream that each block was asked for on."""

    def __init__(self):
        self.asked, self.made, self.now = [], [], None
        self.runtime = self.driver = self

    @contextlib.contextmanager
    def using_stream(self, stream, device):
        self.now = stream
        yield
        self.now = None

    def empty(self, nbytes, typestr, device):
        self.asked.append((nbytes, typestr, device, self.now))
        block = Block(0x10000 * len(self.asked))
        self.made.append(weakref.ref(block))
        return block


@pytest.fixture
def beneath(monkeypatch):
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 1)
    stream = types.SimpleNamespace(ptr=77)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda device=-1: stream)
    return Beneath()


def test_memory_comes_from_the_pool_by_cupys_current_stream(beneath):
    allocator = PoolAllocator(beneath)
    pointer = allocator(100)
    assert beneath.asked == [(100, "|u1", 1, 77)]
    assert (pointer.ptr, pointer.mem.size, pointer.device_id) == (0x10000, 100, 1)
    assert allocator.blocks == {0x10000}


def test_a_block_lives_as_long_as_the_last_array_on_it(beneath):
    allocator = PoolAllocator(beneath)
    pointer = allocator(64)
    (seen,) = beneath.made
    array = cupy.ndarray((4,), "f", pointer)[1:]
    del pointer
    gc.collect()
    assert seen() is not None
    del array
    gc.collect()
    assert seen() is None


def test_no_memory_after_the_capture(beneath):
    allocator = PoolAllocator(beneath)
    allocator.seal()
    with pytest.raises(PoolError) as caught:
        allocator(8)
    assert "get_allocator" in caught.value.remedy
    assert not beneath.asked


# pools


@pytest.mark.parametrize("kind", ["MemoryPool", "MemoryAsyncPool"])
def test_cupys_own_pools_cannot_be_shared_with_graphs(kind):
    plugin = driver.load()
    # Made without __init__, which asks the GPU.
    pool = getattr(cupy.cuda, kind).__new__(getattr(cupy.cuda, kind))
    with pytest.raises(PoolMismatch) as caught:
        plugin.tensorplay_pool_resolve(pool, 0)
    assert kind in caught.value.subject
    assert "graph_pool_handle" in caught.value.remedy
