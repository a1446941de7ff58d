"""Graphs of the CUDA driver on a GPU: adopted, described, updated, ended."""

import gc
import weakref
from typing import Any

import pytest

from tensorplay_core import reclaim
from tensorplay_core.errors import (
    CaptureError,
)
from tensorplay_core.protocols import ConditionalKind

pytestmark = pytest.mark.gpu


def test_a_foreign_capture_takes_conditionals_and_stays_its_owners(cuda: Any) -> None:
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


def test_a_foreign_executable_is_launched_on_its_owners_stream(cuda: Any) -> None:
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


def test_a_foreign_capture_that_fails_is_unwound_with_its_bodies(cuda: Any) -> None:
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


def test_a_stream_that_is_not_capturing_is_not_adopted(cuda: Any) -> None:
    for stream in (cuda.bench.stream(), 0):
        with pytest.raises(CaptureError):
            cuda.runtime.graph_adopt(stream, "nobody")


def test_topology_names_kernels_copies_and_sizes(cuda: Any) -> None:
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


def test_the_drivers_own_picture_is_text(cuda: Any) -> None:
    x = cuda.bench.buffer([1.0])
    made = cuda.facade.record(lambda: cuda.bench.add_(x, 1.0))
    plain = cuda.runtime.graph_dot(made._template, False)
    verbose = cuda.runtime.graph_dot(made._template, True)
    assert plain.startswith("digraph")
    assert len(verbose) >= len(plain)


def test_an_update_says_what_keeps_it_from_its_place(cuda: Any) -> None:
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


def test_an_update_reaches_into_bodies(cuda: Any) -> None:
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


def test_nothing_is_left_behind(cuda: Any) -> None:
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


def test_an_object_kept_by_a_graph_lives_until_its_last_launch(cuda: Any) -> None:
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


def test_a_module_may_go_while_a_graph_launches_it(cuda: Any) -> None:
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
