"""Of the hooks themselves, below the façade: captures, templates and executables as promised."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tensorplay_core.errors import CaptureError, GraphStateError
from tensorplay_core.protocols import Capture, CaptureOptions, ConditionalKind, Pool
from tensorplay_core.runtime import Runtime
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.oracle import churn
from tensorplay_core.testing.workbench import Workbench

from .checks import captures_again, four_parts, unchanged

pytestmark = [
    pytest.mark.needs(
        "graph_begin", "graph_end", "graph_abort", "graph_instantiate", "pool_create", "side_stream"
    ),
    pytest.mark.usefixtures("frozen_heap"),
]


class _Owned:
    """Something that can be seen to die."""


@contextmanager
def _pool(bench: Workbench) -> Iterator[Pool]:
    pool = bench.runtime.pool_create(bench.device)
    yield pool
    bench.runtime.pool_release(pool)


def _begin(bench: Workbench, pool: Pool) -> Capture:
    runtime = bench.runtime
    stream = runtime.side_stream(bench.device, pool)
    return runtime.graph_begin(bench.device, stream, pool, "thread_local", CaptureOptions())


def test_a_capture_says_where_it_is(runtime: Runtime, workbench: Workbench) -> None:
    with _pool(workbench) as pool:
        capture = _begin(workbench, pool)
        current, capturing = (
            runtime.current_stream(workbench.device),
            runtime.graph_capturing(workbench.device),
        )
        runtime.graph_abort(capture, None)
    assert capture.device == workbench.device
    assert capture.stream == current
    assert capture.parent is None
    assert capturing


def test_an_executable_outlives_its_template(runtime: Runtime, workbench: Workbench) -> None:
    total, operands = workbench.buffer([0.0]), [workbench.buffer([2.0])]
    with _pool(workbench) as pool:
        capture = _begin(workbench, pool)
        workbench.add_(total, operands[0])
        template = runtime.graph_end(capture)
        assert template.node_count >= 1
        executable = runtime.graph_instantiate(template)
        template.close()
        template.close()
        del operands[:], template, capture
        gc.collect()
        churn(workbench, length=1)
        executable.launch()
        workbench.synchronize()
        executable.close()
        executable.close()
    assert workbench.read(total) == [2.0]


def test_a_closed_executable_is_not_launched(runtime: Runtime, workbench: Workbench) -> None:
    total = workbench.buffer([0.0])
    with _pool(workbench) as pool:
        capture = _begin(workbench, pool)
        workbench.add_(total, 1.0)
        template = runtime.graph_end(capture)
        executable = runtime.graph_instantiate(template)
        executable.close()
        with pytest.raises(GraphStateError) as caught:
            executable.launch()
        four_parts(caught.value)
        template.close()
    assert workbench.read(total) == [0.0]


def test_what_a_template_retains_its_executables_retain(
    runtime: Runtime, workbench: Workbench
) -> None:
    total, owned = workbench.buffer([0.0]), _Owned()
    seen = weakref.ref(owned)
    with _pool(workbench) as pool:
        capture = _begin(workbench, pool)
        workbench.add_(total, 1.0)
        template = runtime.graph_end(capture)
        template.retain(owned)
        executable = runtime.graph_instantiate(template)
        template.close()
        del owned, template, capture
        gc.collect()
        assert seen() is not None
        executable.close()
        del executable
        gc.collect()
    assert seen() is None


def test_a_template_without_conditionals_makes_several_executables(
    runtime: Runtime, workbench: Workbench
) -> None:
    total = workbench.buffer([0.0])
    with _pool(workbench) as pool:
        capture = _begin(workbench, pool)
        workbench.add_(total, 1.0)
        template = runtime.graph_end(capture)
        several = [runtime.graph_instantiate(template) for _ in range(3)]
        several[0].launch()
        several[0].close()
        for one in several[1:]:
            one.launch()
        workbench.synchronize()
        for one in several:
            one.close()
        template.close()
    assert workbench.read(total) == [3.0]


@pytest.mark.parametrize("error", [None, KeyError("the user's own")])
def test_an_abort_never_raises_and_restores(
    runtime: Runtime, workbench: Workbench, facade: Facade, error: BaseException | None
) -> None:
    total, before = workbench.buffer([0.0]), workbench.live_bytes()
    with _pool(workbench) as pool, unchanged(facade):
        capture = _begin(workbench, pool)
        workbench.add_(total, workbench.double(total))
        runtime.graph_abort(capture, error)
    del capture
    assert workbench.live_bytes() == before
    assert workbench.read(total) == [0.0]
    captures_again(facade)


def test_a_begin_that_fails_changes_nothing(
    runtime: Runtime, workbench: Workbench, facade: Facade
) -> None:
    with _pool(workbench) as pool, unchanged(facade), pytest.raises(CaptureError) as caught:
        runtime.graph_begin(workbench.device, 0, pool, "global", CaptureOptions())
    four_parts(caught.value)
    captures_again(facade)


@pytest.mark.needs("pool_route", "pool_statistics")
def test_allocations_go_to_the_pool_they_are_routed_to(
    runtime: Runtime, workbench: Workbench
) -> None:
    x, before = workbench.buffer([1.0, 2.0]), workbench.live_bytes()
    with _pool(workbench) as pool, _pool(workbench) as other:
        capture = _begin(workbench, pool)
        results = [workbench.double(x)]
        with runtime.pool_route(other, capture):
            results.append(workbench.double(results[0]))
        results.append(workbench.double(results[1]))
        template = runtime.graph_end(capture)
        assert runtime.pool_statistics(pool).allocation_count == 2
        assert runtime.pool_statistics(other).allocation_count == 1
        executable = runtime.graph_instantiate(template)
        executable.launch()
        assert [workbench.read(one) for one in results] == [[2.0, 4.0], [4.0, 8.0], [8.0, 16.0]]
        executable.close()
        template.close()
        del results[:], capture, template, executable
    assert workbench.live_bytes() == before


@pytest.mark.needs("conditional_open", "conditional_enter", "conditional_exit")
@pytest.mark.parametrize(
    ("kind", "branches"),
    [
        (ConditionalKind.IF, 1),
        (ConditionalKind.IF, 2),
        (ConditionalKind.WHILE, 1),
        (ConditionalKind.SWITCH, 3),
    ],
)
def test_a_conditional_opens_as_many_bodies_as_branches_each_with_its_parent(
    runtime: Runtime, workbench: Workbench, kind: ConditionalKind, branches: int
) -> None:
    predicate = workbench.index(0) if kind is ConditionalKind.SWITCH else workbench.flag(False)
    with _pool(workbench) as pool:
        capture = _begin(workbench, pool)
        bodies = runtime.conditional_open(capture, kind, predicate, branches)
        parents = [body.parent for body in bodies]
        devices = {body.device for body in bodies}
        runtime.graph_abort(capture, None)
    assert parents == [capture] * branches
    assert devices == {workbench.device}
