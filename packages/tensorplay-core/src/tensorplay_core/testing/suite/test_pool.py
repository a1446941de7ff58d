"""Of a pool: private unless shared, accounted for, given back when the last holder is gone."""

from __future__ import annotations

import gc
from functools import partial

import pytest

from tensorplay_core.errors import GraphStateError, PoolMismatch, TensorplayError
from tensorplay_core.runtime import Runtime
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.oracle import churn
from tensorplay_core.testing.workbench import Workbench

from .checks import four_parts, refused

pytestmark = [
    pytest.mark.needs("pool_create", "pool_statistics", "pool_release"),
    pytest.mark.usefixtures("frozen_heap"),
]


def test_graphs_have_pools_of_their_own_unless_told(workbench: Workbench, facade: Facade) -> None:
    x = workbench.buffer([1.0])
    first, second = (facade.record(lambda: workbench.double(x)) for _ in range(2))
    assert first.pool_id != second.pool_id
    assert hash(first.pool_id) == hash(first.pool())


@pytest.mark.parametrize("token", ["handle", "graph", "pool_id"])
def test_a_pool_is_shared_by_whatever_names_it(
    workbench: Workbench, facade: Facade, token: str
) -> None:
    x = workbench.buffer([1.0])
    handle = facade.pool()
    first = facade.record(lambda: workbench.double(x), handle)
    named = {"handle": handle, "graph": first, "pool_id": first.pool_id}[token]
    second = facade.record(lambda: workbench.double(x), named)
    assert first.pool_id == second.pool_id == handle


def test_handles_are_different_and_cost_nothing(workbench: Workbench, facade: Facade) -> None:
    before = workbench.live_bytes()
    handles = {facade.pool() for _ in range(5)}
    assert len(handles) == 5
    assert workbench.live_bytes() == before


def test_graphs_of_one_pool_are_right_in_the_order_of_capture(
    workbench: Workbench, facade: Facade
) -> None:
    x, pool = workbench.buffer([1.0, 2.0]), facade.pool()
    made, results = [], []
    for count in range(1, 4):
        one = facade.new()
        with facade.capture(one, pool):
            y = workbench.double(x)
            for _ in range(count):
                y = workbench.double(y)
        made.append(one)
        results.append(y)
    for value in (1.0, 3.0):
        workbench.write(x, [value, -value])
        for one in made:
            one.replay()
        for count, result in enumerate(results, start=1):
            assert workbench.read(result) == [value * 2 ** (count + 1), -value * 2 ** (count + 1)]


def test_results_of_one_graph_are_not_anothers_scratch(
    workbench: Workbench, facade: Facade
) -> None:
    x, pool = workbench.buffer([1.0, 2.0]), facade.pool()
    first, second = facade.new(), facade.new()
    with facade.capture(first, pool):
        kept = workbench.double(x)
    with facade.capture(second, pool):
        for _ in range(8):
            workbench.add_(workbench.double(x), 100.0)
    first.replay()
    second.replay()
    assert workbench.read(kept) == [2.0, 4.0]


def test_a_pools_statistics_account_for_its_memory(workbench: Workbench, facade: Facade) -> None:
    x, made = workbench.buffer([0.0] * 16), facade.new()
    with facade.capture(made):
        kept = [workbench.double(x) for _ in range(3)]
    full = made.memory
    assert full.allocated_bytes >= 3 * 16 * 4
    assert full.allocation_count >= 3
    assert full.reserved_bytes >= full.allocated_bytes
    assert full.peak_bytes >= full.allocated_bytes
    kept.pop()
    gc.collect()
    less = made.memory
    assert less.allocated_bytes < full.allocated_bytes
    assert less.allocation_count < full.allocation_count
    assert less.peak_bytes == full.peak_bytes
    del kept[:]


def test_memory_dropped_in_a_capture_is_used_again(workbench: Workbench, facade: Facade) -> None:
    x = workbench.buffer([1.0] * 16)

    def chain(length: int) -> None:
        y = workbench.double(x)
        for _ in range(length):
            y = workbench.double(y)

    short, long = (facade.record(partial(chain, length)) for length in (2, 50))
    assert long.memory.peak_bytes <= 2 * short.memory.peak_bytes


def test_dropped_memory_is_not_used_by_eager_work(workbench: Workbench, facade: Facade) -> None:
    x, total = workbench.buffer([1.0, 2.0]), workbench.buffer([0.0, 0.0])

    def work() -> None:
        scratch = workbench.double(x)
        workbench.add_(scratch, x)
        workbench.copy_(total, scratch)

    made = facade.record(work)
    eager = [workbench.double(x) for _ in range(32)]
    made.replay()
    assert workbench.read(total) == [3.0, 6.0]
    assert all(workbench.read(one) == [2.0, 4.0] for one in eager)


def test_a_tensor_may_outlive_its_graph(workbench: Workbench, facade: Facade) -> None:
    x, made = workbench.buffer([1.0, 2.0]), facade.new()
    before = workbench.live_bytes()
    with facade.capture(made):
        result = workbench.double(x)
    made.replay()
    workbench.synchronize()
    made.close()
    del made
    churn(workbench, length=2)
    assert workbench.read(result) == [2.0, 4.0]
    assert workbench.live_bytes() > before
    del result
    assert workbench.live_bytes() == before


def test_memory_is_back_when_the_last_graph_and_the_last_tensor_are_gone(
    workbench: Workbench, facade: Facade
) -> None:
    x, pool = workbench.buffer([1.0] * 8), facade.pool()
    before = workbench.live_bytes()
    first, second = facade.new(), facade.new()
    with facade.capture(first, pool):
        kept = workbench.double(x)
    with facade.capture(second, pool):
        workbench.double(x)
    first.close()
    assert second.memory.allocated_bytes > 0
    second.close()
    workbench.synchronize()
    assert workbench.live_bytes() > before
    del kept
    assert workbench.live_bytes() == before


def test_the_memory_of_an_empty_graph_cannot_be_told(facade: Facade) -> None:
    for attribute in ("memory", "pool_id"):
        with pytest.raises(GraphStateError) as caught:
            getattr(facade.new(), attribute)
        four_parts(caught.value)


@pytest.mark.parametrize("token", ["no pool", 123456789, object(), (1, 2, 3)], ids=type)
def test_what_is_no_pool_is_refused(facade: Facade, token: object) -> None:
    with refused(facade, PoolMismatch):
        facade.new().capture_begin(pool=token)


def test_a_pool_of_another_driver_is_refused(workbench: Workbench, facade: Facade) -> None:
    class Foreign:
        """A pool as another driver would give it."""

        id = ("another", 1)
        device = workbench.device

    with refused(facade, PoolMismatch):
        facade.new().capture_begin(pool=Foreign())
    with refused(facade, PoolMismatch):
        facade.new().capture_begin(pool=("another", 1))


def test_an_empty_graph_names_no_pool(facade: Facade) -> None:
    with refused(facade, TensorplayError):
        facade.new().capture_begin(pool=facade.new())


def test_a_failed_capture_gives_its_pool_back(workbench: Workbench, facade: Facade) -> None:
    x, pool = workbench.buffer([1.0] * 8), facade.pool()
    before = workbench.live_bytes()
    for shared in (None, pool):
        with pytest.raises(KeyError), facade.capture(facade.new(), shared):
            workbench.double(x)
            raise KeyError
        assert workbench.live_bytes() == before


def test_a_pool_serves_again_after_its_last_graph(
    runtime: Runtime, workbench: Workbench, facade: Facade
) -> None:
    x, pool = workbench.buffer([1.0]), facade.pool()
    for _ in range(3):
        made = facade.new()
        with facade.capture(made, pool):
            result = workbench.double(x)
        made.replay()
        assert workbench.read(result) == [2.0]
        made.close()
        del result


def test_handles_that_nobody_uses_keep_no_pool(
    runtime: Runtime, workbench: Workbench, facade: Facade
) -> None:
    kind = type(runtime.pool_create(workbench.device))

    def pools() -> int:
        gc.collect()
        return sum(type(one) is kind for one in gc.get_objects())

    array, before = workbench.buffer([1.0]), pools()
    handles = [facade.pool() for _ in range(20)]
    assert pools() == before
    made = facade.record(lambda: workbench.double(array), handles[7])
    assert made.pool_id == handles[7]
