"""Pools of the host: private, shared, reused, and gone with the last graph and the last buffer."""

import gc
import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensorplay_core.discovery import load_card
from tensorplay_core.errors import PoolError, PoolExhausted, PoolMismatch
from tensorplay_core.protocols import CaptureOptions
from tensorplay_core.runtime import Runtime


def reserved(host: Any) -> int:
    return int(host.runtime.pool_statistics(host.pool).reserved_bytes)


def test_buffers_of_a_capture_come_from_its_pool_on_forks_too(host: Any) -> None:
    driver = host.driver
    outside = driver.buffer(16)
    with host.capture():
        first = driver.buffer(16)
        side = driver.stream()
        side.wait_stream(driver.current)
        with driver.using(side):
            second = driver.buffer(16)
        driver.current.wait_stream(side)
        with driver.using(driver.stream()):
            third = driver.buffer(16)
    found = host.runtime.pool_statistics(host.pool)
    assert found == (128, 128, 128, 2)
    assert first.nbytes == second.nbytes == third.nbytes == outside.nbytes == 64
    del first
    assert host.runtime.pool_statistics(host.pool) == (128, 64, 128, 1)


def test_memory_let_go_is_reused_in_the_capture_and_by_graphs_that_share_it(host: Any) -> None:
    driver = host.driver
    source = driver.buffer([1.0] * 16)

    def chain() -> Any:
        current = source
        for _ in range(8):
            result = driver.buffer(16)
            driver.copy(result, current)
            current = result
        return current

    with host.capture():
        out = chain()
    assert reserved(host) == 128
    del out
    with host.capture(pool=host.pool) as shared:
        out = chain()
    assert reserved(host) == 128
    host.executable(shared).launch()
    assert out.tolist() == [1.0] * 16


def test_a_big_block_serves_small_ones_and_grows_together_again(host: Any) -> None:
    with host.capture():
        big = host.driver.buffer(1024)
        del big
        small = [host.driver.buffer(128) for _ in range(8)]
        assert reserved(host) == 4096
        del small[::2]
        del small
        again = host.driver.buffer(1024)
    assert reserved(host) == again.nbytes == 4096


def test_captured_work_does_not_keep_what_was_born_in_its_capture(host: Any) -> None:
    class Kernel:
        def __call__(self, result: Any, source: Any) -> None:
            result.memory[0] = source.memory[0] + 1

    driver = host.driver
    source = driver.buffer([1.0])
    with host.capture() as captured:
        middle = driver.buffer(1)
        driver.launch(Kernel(), middle, source, writes=(middle,))
        out = driver.buffer(1)
        driver.launch(Kernel(), out, middle, writes=(out,))
        del middle
        assert host.runtime.pool_statistics(host.pool).allocation_count == 1
    host.executable(captured).launch()
    assert out.tolist() == [3.0]


def test_captured_work_keeps_what_was_born_elsewhere(host: Any) -> None:
    driver = host.driver
    out = driver.buffer(16)
    source = driver.buffer([1.0] * 16)
    with host.capture() as first:
        shared = driver.buffer(16)
        driver.copy(shared, source)
    pool = host.pool
    with host.capture() as second:
        driver.copy(out, shared)
    del source, shared
    assert host.runtime.pool_statistics(pool).allocation_count == 1
    host.executable(first).launch()
    executable = host.executable(second)
    second.template.close()
    executable.launch()
    assert out.tolist() == [1.0] * 16
    executable.close()
    assert host.runtime.pool_statistics(pool).allocation_count == 0


def test_without_tracking_operands_are_the_callers_duty(host: Any) -> None:
    with host.capture(track_operands=False):
        before = host.driver.held_bytes
        source = host.driver.buffer([1.0] * 16)
        out = host.driver.buffer(16)
        host.driver.copy(out, source)
        del source, out
    assert host.driver.held_bytes == before + reserved(host)
    outside = host.driver.buffer(16)
    with host.capture(track_operands=False) as captured:
        host.driver.memset(outside, 1)
    held = host.driver.held_bytes
    del outside
    assert host.driver.held_bytes == held - 64
    assert captured.template.node_count == 1


def test_ids_are_shared_and_foreign_ones_refused(host: Any) -> None:
    runtime = host.runtime
    pool = runtime.pool_create("host")
    assert runtime.pool_resolve(pool.id, "host") is pool
    assert runtime.pool_resolve(pool, "host") is pool
    assert hash(pool.id)
    foreign = type(host)().runtime.pool_create("host")
    for token in (foreign.id, foreign, (0, 1), "pool", 3, object(), []):
        with pytest.raises(PoolMismatch):
            runtime.pool_resolve(token, "host")


def test_routing_goes_to_another_pool_of_this_driver_and_back(host: Any) -> None:
    runtime, driver = host.runtime, host.driver
    other = runtime.pool_create("host")
    with host.capture() as captured:
        with pytest.raises(KeyError), runtime.pool_route(other, captured.capture):
            first = driver.buffer(16)
            raise KeyError
        second = driver.buffer(16)
        foreign = type(host)().runtime.pool_create("host")
        with pytest.raises(PoolMismatch), runtime.pool_route(foreign, captured.capture):
            raise AssertionError
    assert runtime.pool_statistics(other).allocated_bytes == first.nbytes
    assert runtime.pool_statistics(host.pool).allocated_bytes == second.nbytes


def test_memory_returns_with_the_last_buffer_after_release(host: Any) -> None:
    driver = host.driver
    with host.capture():
        kept, gone = driver.buffer(16), driver.buffer(16)
    assert driver.held_bytes == 128
    host.runtime.pool_release(host.pool)
    assert driver.held_bytes == 128
    gc.disable()
    try:
        del gone
        assert driver.held_bytes == 64
        kept[0] = 1.0
        del kept
        assert driver.held_bytes == 0
    finally:
        gc.enable()
    assert host.runtime.pool_statistics(host.pool)[:2] == (0, 0)


def test_a_released_pool_serves_no_more_but_its_id_begins_anew(host: Any) -> None:
    pool = host.runtime.pool_create("host")
    host.runtime.pool_release(pool)
    with pytest.raises(PoolError, match="let go"):
        host.begin(pool=pool)
    fresh = host.runtime.pool_resolve(pool.id, "host")
    assert fresh is not pool
    with host.capture(pool=fresh):
        buffer = host.driver.buffer(16)
    assert host.runtime.pool_statistics(fresh).allocated_bytes == buffer.nbytes


def test_an_exhausted_pool_leaves_everything_as_it_was(host: Any) -> None:
    driver = host.driver
    with host.capture():
        kept = driver.buffer(16)
        driver.limit_bytes = driver.held_bytes
        before = host.runtime.pool_statistics(host.pool)
        with pytest.raises(PoolExhausted, match="limit_bytes"):
            driver.buffer(16)
        assert host.runtime.pool_statistics(host.pool) == before
        del kept
        driver.buffer(16)


def test_graphs_that_share_a_pool_take_turns(host: Any) -> None:
    driver, running, most = host.driver, [], []
    entered = threading.Event()

    def work() -> None:
        running.append(1)
        most.append(len(running))
        entered.wait(0.05)
        running.pop()

    launches = []
    for _ in range(2):
        with host.capture(pool=host.pool) as captured:
            driver.submit(work, name="work")
        launches.append(host.executable(captured).launch)
    threads = [threading.Thread(target=launch) for launch in launches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1]


class PoolMachine(RuleBasedStateMachine):
    """One pool, allocated from and let go of in any order: no two live buffers ever overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime = Runtime(load_card("host").load(), name="host")
        self.driver: Any = self.runtime.driver
        self.pool = self.runtime.pool_create("host")
        self.buffers: list[tuple[Any, int]] = []
        self.marks = 0
        self.released = False

    @precondition(lambda self: not self.released)
    @rule(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4))
    def capture(self, sizes: list[int]) -> None:
        stream = self.runtime.side_stream("host", self.pool)
        capture = self.runtime.graph_begin("host", stream, self.pool, "global", CaptureOptions())
        made = [self.driver.buffer(size, "i") for size in sizes]
        self.runtime.graph_end(capture)
        for buffer in made:
            self.marks += 1
            self.driver.memset(buffer, self.marks)
            self.buffers.append((buffer, self.marks))

    @precondition(lambda self: self.buffers)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        del self.buffers[data.draw(st.integers(0, len(self.buffers) - 1))]

    @rule()
    def release(self) -> None:
        self.runtime.pool_release(self.pool)
        self.released = True

    @invariant()
    def nothing_overlaps_and_the_books_are_right(self) -> None:
        for buffer, mark in self.buffers:
            assert buffer.tolist() == [mark] * len(buffer)
        found = self.runtime.pool_statistics(self.pool)
        held = sum(-(-buffer.nbytes // 64) * 64 for buffer, _ in self.buffers)
        assert found.allocated_bytes == held
        assert found.allocation_count == len(self.buffers)
        assert held <= found.reserved_bytes == self.driver.held_bytes
        assert found.peak_bytes >= held
        if self.released and not self.buffers:
            assert found.reserved_bytes == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_a_pool_that_dies_with_its_blocks_in_a_cycle_is_given_back_once(host: Any) -> None:
    before = host.driver.held_bytes
    for released in (False, True):
        for first in ("pool", "block"):
            pool = host.runtime.pool_create("host")
            with host.capture(pool=pool):
                block = host.driver.buffer(8).storage
            cycle = [pool, block] if first == "pool" else [block, pool]
            cycle.append(cycle)
            if released:
                host.runtime.pool_release(pool)
            host.pool = None
            del pool, block, cycle
            gc.collect()
            assert host.driver.held_bytes == before
