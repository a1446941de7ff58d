"""The CuPy driver on a stand-in for the driver beneath: what it asks of it, in what order, and that
CuPy's stream, device and allocator are as they were, however a capture ends.
"""

from __future__ import annotations

import contextlib
import types

import cupy
import pytest

from tensorplay_core.errors import CaptureInvalidated, DriverCallFailed, OperationRefused
from tensorplay_core.protocols import CaptureOptions, ConditionalKind
from tensorplay_cupy import captures, driver, streams

from .beneath import Beneath, Stream, Template


@pytest.fixture
def log():
    return []


@pytest.fixture
def beneath(log):
    return Beneath(log)


@pytest.fixture
def plugin(monkeypatch, log, beneath):
    made = driver.load()
    made.base = beneath
    monkeypatch.setattr(made, "cupy_stream", lambda stream, device: Stream(log, stream))
    current = types.SimpleNamespace(ptr=0, synchronize=lambda: log.append("settle"))
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda device=-1: current)

    @contextlib.contextmanager
    def device(ordinal):
        log.append(f"device {ordinal}")
        try:
            yield
        finally:
            log.append(f"not device {ordinal}")

    monkeypatch.setattr(cupy.cuda, "Device", device)
    return made


def begin(plugin, **options):
    return plugin.tensorplay_graph_begin(0, 100, "pool", "global", CaptureOptions(**options))


def test_a_capture_makes_stream_device_and_pool_cupys_until_it_ends(plugin, log):
    before = cupy.cuda.get_allocator()
    capture = begin(plugin)
    assert log == ["settle", "begin", "device 0", "stream 100"]
    assert cupy.cuda.get_allocator() is capture.allocator
    assert captures.innermost() is capture
    del log[:]
    template = plugin.tensorplay_graph_end(capture)
    assert isinstance(template, Template)
    assert log == ["mentioned", "retain on 100", "not stream 100", "not device 0", "end"]
    assert cupy.cuda.get_allocator() is before
    assert captures.innermost() is None


def test_a_begin_that_fails_changes_nothing(plugin, beneath, log):
    before = cupy.cuda.get_allocator()
    beneath.failing["begin"] = KeyError()
    with pytest.raises(KeyError):
        begin(plugin)
    assert "stream 100" not in log
    assert cupy.cuda.get_allocator() is before
    assert captures.innermost() is None


def test_a_stream_that_cannot_be_made_current_discards_the_capture(plugin, log, monkeypatch):
    class Broken(Stream):
        def __enter__(self):
            raise RuntimeError("another device")

    monkeypatch.setattr(plugin, "cupy_stream", lambda stream, device: Broken(log, stream))
    with pytest.raises(RuntimeError, match="another device"):
        begin(plugin)
    assert log[-2:] == ["not device 0", "abort"]
    assert captures.innermost() is None


def test_the_graph_gets_what_its_nodes_mention(plugin, beneath, fake):
    used, other = fake((4,)), fake((4,))
    beneath.words = {int(used.data.ptr) + 4}
    capture = begin(plugin)
    plugin.tensorplay_graph_end(capture)
    assert beneath.kept == [used.data.mem]
    assert other is not None


def test_what_nobody_tracks_is_not_looked_for(plugin, beneath, log, fake):
    used = fake((4,))
    beneath.words = {int(used.data.ptr)}
    plugin.tensorplay_graph_end(begin(plugin, track_operands=False))
    assert beneath.kept == []
    assert "mentioned" not in log


def test_liveness_is_watched_by_witnesses(plugin, beneath, fake):
    used = fake((4,))
    beneath.words = {int(used.data.ptr)}
    plugin.tensorplay_graph_end(begin(plugin, check_input_liveness=True))
    (witness,) = beneath.kept
    assert "shape (4,)" in repr(witness)


def test_nodes_that_cannot_be_read_may_use_anything(plugin, beneath, fake):
    arrays = [fake((4,)) for _ in range(3)]
    capture = begin(plugin)
    beneath.failing["mentioned"] = DriverCallFailed(
        call="cuGraphKernelNodeGetParams",
        code=1,
        code_name="X",
        meaning="m",
        subject="s",
        remedy="r",
    )
    plugin.tensorplay_graph_end(capture)
    kept = {id(one) for one in beneath.kept}
    assert {id(one.data.mem) for one in arrays} <= kept


def test_a_broken_capture_ends_with_the_reason_and_leaves_no_trace(plugin, beneath):
    before = cupy.cuda.get_allocator()
    capture = begin(plugin)
    broken = CaptureInvalidated(doing="ending", subject="it", met="it broke", remedy="Mend it.")
    beneath.failing["mentioned"] = beneath.failing["end"] = broken
    with pytest.raises(CaptureInvalidated) as caught:
        plugin.tensorplay_graph_end(capture)
    assert caught.value is broken
    assert cupy.cuda.get_allocator() is before
    assert captures.innermost() is None


def test_a_graph_whose_operands_are_unknown_is_not_given_out(plugin, beneath):
    made = []
    capture = begin(plugin)
    beneath.failing["mentioned"] = CaptureInvalidated(doing="a", subject="b", met="c", remedy="d")
    beneath.graph_end = lambda _: made.append(Template()) or made[0]
    with pytest.raises(CaptureInvalidated):
        plugin.tensorplay_graph_end(capture)
    assert made[0].closed


def test_callbacks_go_with_the_graph(plugin, beneath, monkeypatch):
    capture = begin(plugin)
    assert capture.callbacks == []
    plugin.tensorplay_graph_end(capture)
    assert capture.callbacks not in beneath.always
    capture = begin(plugin)
    capture.callbacks.append(("function", "argument"))
    plugin.tensorplay_graph_end(capture)
    assert any(one is capture.callbacks for one in beneath.always)


def test_bodies_are_entered_and_left_in_order(plugin, beneath, log, fake):
    capture, flag = begin(plugin), fake((1,), "?")
    del log[:]
    bodies = plugin.tensorplay_conditional_open(
        capture, ConditionalKind.IF, flag, 2, first=False, max_steps=None
    )
    assert "shape (1,), bool" in repr(beneath.sampled)
    assert beneath.always == [beneath.sampled]
    for body in bodies:
        assert body.parent is capture
        plugin.tensorplay_conditional_enter(body)
        assert captures.innermost() is body
        assert captures.outermost() is capture
        assert cupy.cuda.get_allocator() is capture.allocator
        plugin.tensorplay_conditional_exit(body)
        assert captures.innermost() is capture
    assert log == [
        *("open if", "retain on 100"),
        *("enter", "device 0", "stream 200", "not stream 200", "not device 0", "exit"),
        *("enter", "device 0", "stream 201", "not stream 201", "not device 0", "exit"),
    ]
    plugin.tensorplay_graph_end(capture)


def test_an_abort_leaves_open_bodies_first(plugin, log, fake):
    before = cupy.cuda.get_allocator()
    capture = begin(plugin)
    inner = capture
    for _ in range(2):
        (inner,) = plugin.tensorplay_conditional_open(
            inner, ConditionalKind.WHILE, fake((1,), "?"), 1, first=False, max_steps=None
        )
        plugin.tensorplay_conditional_enter(inner)
    del log[:]
    error = KeyError("the user's own")
    plugin.tensorplay_graph_abort(capture, error)
    assert [line for line in log if line.startswith("not stream")] == [
        *("not stream 200", "not stream 200", "not stream 100"),
    ]
    assert log[-1] == "abort"
    assert cupy.cuda.get_allocator() is before
    assert captures.innermost() is None
    assert not getattr(error, "__notes__", [])


def test_an_abort_notes_what_it_meets_and_goes_on(plugin, log):
    capture = begin(plugin)

    def fail():
        raise IndexError("no stream to pop")

    capture.undo.callback(fail)
    error = KeyError("the user's own")
    plugin.tensorplay_graph_abort(capture, error)
    assert "IndexError" in error.__notes__[0]
    assert log[-1] == "abort"
    assert captures.innermost() is None


def test_a_capture_of_another_library_is_taken_in_as_it_is(plugin, log):
    before = cupy.cuda.get_allocator()
    capture = plugin.tensorplay_graph_adopt(300, "CuPy")
    assert capture.adopted
    assert capture.stream == 300
    assert cupy.cuda.get_allocator() is before
    assert captures.innermost() is None


def test_a_predicate_is_not_read_in_a_capture(plugin, monkeypatch, fake):
    monkeypatch.setattr(streams, "capturing", lambda: True)
    with pytest.raises(OperationRefused) as caught:
        plugin.tensorplay_conditional_read(fake((1,), "?"))
    assert caught.value.where.startswith(__file__)


def test_an_error_that_is_kept_keeps_no_arrays(plugin, beneath, fake):
    import gc
    import weakref

    class Owner:
        """Of memory."""

    owner = Owner()
    seen = weakref.ref(owner)
    array = fake((4,), owner=owner)
    kept = []
    for place in ("begin", "mentioned", "end"):
        beneath.failing = {place: CaptureInvalidated(doing="a", subject="b", met="c", remedy="d")}
        with pytest.raises(CaptureInvalidated) as caught:
            plugin.tensorplay_graph_end(begin(plugin))
        kept.append(caught.value)
    del array, owner
    beneath.failing, beneath.kept = {}, []
    gc.collect()
    assert seen() is None
    assert all(one.__traceback__ is not None for one in kept)


def test_the_driver_beneath_offers_what_is_asked_of_it():
    import importlib
    import inspect

    from tensorplay_cupy.base import CudaDriver

    beneath = importlib.import_module("tensorplay_core.drivers.cuda.conditional").Conditionals
    asks = {name: one for name, one in vars(CudaDriver).items() if inspect.isfunction(one)}
    asks = {name: one for name, one in asks.items() if not name.startswith("_")}
    assert {"empty", "retain", "mentioned", "make_executable", "staged"} <= asks.keys()
    for name, asked in asks.items():
        offered = inspect.signature(getattr(beneath, name))
        wanted = list(inspect.signature(asked).parameters.values())
        positional = [p.name for p in wanted if p.kind is p.POSITIONAL_OR_KEYWORD]
        named = {p.name: None for p in wanted if p.kind is p.KEYWORD_ONLY}
        offered.bind(*positional, **named)
