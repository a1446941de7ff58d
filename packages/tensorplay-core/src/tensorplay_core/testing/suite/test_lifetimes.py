"""Ends are deterministic: graphs, pools and tensors live and die in any order, and memory returns.

A state machine makes, captures, replays, resets, closes and drops them, over pools of their own and
shared ones. What each graph may do is modelled beside it.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tensorplay_core import reclaim, registry
from tensorplay_core.errors import GraphStateError
from tensorplay_core.testing import profiles
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.oracle import churn

from .checks import four_parts

pytestmark = [
    pytest.mark.needs("pool_create", "pool_statistics", "pool_release"),
    pytest.mark.usefixtures("frozen_heap"),
]


@dataclass(eq=False)
class _Held:
    """A graph and what it may do now.

    Attributes:
        result: The buffer born in its capture, None once dropped.
        value: What the result holds, None while it was not replayed.
        private: True if no other graph can use its pool.
    """

    graph: Any
    state: str = "empty"
    result: Any = None
    value: float | None = None
    private: bool = True

    def forget(self) -> None:
        self.state, self.result, self.value, self.private = "empty", None, None, True


class Lifetimes(RuleBasedStateMachine):
    """Graphs over pools, on one driver."""

    graphs = Bundle("graphs")
    pools = Bundle("pools")
    orphans = Bundle("orphans")

    def __init__(self, facade: Facade) -> None:
        super().__init__()
        self.facade, self.bench = facade, facade.bench
        self.x = self.bench.buffer([1.0, 2.0])
        self.all: list[_Held] = []
        # What is there by now is looked at no more, or each run would take longer than the last.
        gc.collect()
        gc.freeze()
        self.registered = len(registry.live())
        self.before = self.bench.live_bytes()

    @rule(target=graphs)
    def make(self) -> _Held:
        held = _Held(self.facade.new())
        self.all.append(held)
        return held

    @rule(target=pools)
    def make_pool(self) -> Any:
        return self.facade.pool()

    @rule(held=graphs)
    def capture_alone(self, held: _Held) -> None:
        self._capture(held, None)

    @rule(held=graphs, pool=pools)
    def capture_in_a_shared_pool(self, held: _Held, pool: Any) -> None:
        self._capture(held, pool)

    @rule(held=graphs, other=graphs)
    def capture_in_the_pool_of(self, held: _Held, other: _Held) -> None:
        if other.state == "ready" and other is not held and held.state == "empty":
            self._capture(held, other.graph)
            other.private = False

    def _capture(self, held: _Held, pool: Any, meanwhile: Callable[[], None] | None = None) -> None:
        if held.state != "empty":
            with pytest.raises(GraphStateError) as caught:
                held.graph.capture_begin(pool)
            four_parts(caught.value)
            return
        with self.facade.capture(held.graph, pool, capture_error_mode="thread_local"):
            scratch = self.bench.double(self.x)
            if meanwhile is not None:
                meanwhile()
            held.result = self.bench.double(scratch)
        held.state, held.value, held.private = "ready", None, pool is None

    @rule(held=graphs, pool=st.none() | pools)
    def fail_to_capture(self, held: _Held, pool: Any) -> None:
        if held.state == "empty":
            with pytest.raises(KeyError), self.facade.capture(held.graph, pool):
                self.bench.double(self.x)
                raise KeyError

    @rule(held=graphs, other=graphs, final=st.booleans())
    def end_one_during_the_capture_of_another(self, held: _Held, other: _Held, final: bool) -> None:
        if held is not other and held.state == "empty":
            self._capture(held, None, lambda: self._end(other, final))

    @rule(held=graphs, value=st.integers(-8, 8).map(float))
    def replay(self, held: _Held, value: float) -> None:
        if held.state != "ready":
            with pytest.raises(GraphStateError) as caught:
                held.graph.replay()
            four_parts(caught.value)
            return
        self.bench.write(self.x, [value, -value])
        held.graph.replay()
        self.bench.synchronize()
        held.value = value
        self._look_at(held)

    def _look_at(self, held: _Held) -> None:
        if held.result is not None and held.value is not None:
            assert self.bench.read(held.result) == [4 * held.value, -4 * held.value]

    @rule(held=graphs)
    def capture_in_another_thread(self, held: _Held) -> None:
        if held.state == "empty":
            self._elsewhere(lambda: self._capture(held, None))

    @rule(held=graphs, other=graphs)
    def update(self, held: _Held, other: _Held) -> None:
        if not self.bench.runtime.can("graph_update") or {held.state, other.state} != {"ready"}:
            return
        if held is other:
            return
        held.graph.update(other.graph)
        # What the other captured is now this one's, and the other is empty.
        held.result, held.value, held.private = other.result, None, other.private
        other.forget()

    @rule(held=graphs, final=st.booleans(), elsewhere=st.booleans())
    def end(self, held: _Held, final: bool, elsewhere: bool) -> None:
        if not elsewhere:
            self._end(held, final)
            return
        self._elsewhere(lambda: self._end(held, final))

    def _elsewhere(self, work: Callable[[], None]) -> None:
        failed: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert failed == []

    def _end(self, held: _Held, final: bool) -> None:
        (held.graph.close if final else held.graph.reset)()
        held.state = "closed" if final or held.state == "closed" else "empty"

    @rule(target=orphans, held=graphs, final=st.booleans())
    def let_a_result_outlive_the_capture(self, held: _Held, final: bool) -> Any:
        if held.result is None:
            return multiple()
        self._end(held, final)
        return self._orphan(held)

    @rule(target=orphans, held=consumes(graphs))
    def let_a_result_outlive_the_graph(self, held: _Held) -> Any:
        self.all.remove(held)
        held.graph = None
        return multiple() if held.result is None else self._orphan(held)

    def _orphan(self, held: _Held) -> _Held:
        orphan = _Held(None, "orphan", held.result, held.value, held.private)
        held.result = None
        self.all.append(orphan)
        return orphan

    @rule(held=graphs)
    def drop_the_result(self, held: _Held) -> None:
        held.result = None

    @rule(orphan=consumes(orphans))
    def drop_an_orphan(self, orphan: _Held) -> None:
        self.all.remove(orphan)
        orphan.result = None

    @rule(held=consumes(graphs))
    def drop_a_graph(self, held: _Held) -> None:
        self.all.remove(held)
        held.graph = held.result = None

    @rule()
    def churn(self) -> None:
        churn(self.bench, length=2)

    @rule()
    def collect(self) -> None:
        gc.collect()

    @invariant()
    def nothing_is_capturing(self) -> None:
        assert not self.facade.capturing()
        assert reclaim.captures_live() == 0

    @invariant()
    def statistics_add_up(self) -> None:
        for held in self.all:
            if held.state != "ready":
                continue
            memory = held.graph.memory
            assert 0 <= memory.allocated_bytes <= memory.reserved_bytes
            assert memory.allocated_bytes <= memory.peak_bytes
            assert (memory.allocation_count > 0) == (memory.allocated_bytes > 0)
            if held.result is not None:
                assert memory.allocated_bytes >= 8

    @invariant()
    def results_of_private_pools_stay(self) -> None:
        for held in self.all:
            if held.private:
                self._look_at(held)

    def teardown(self) -> None:
        for held in self.all:
            held.graph = held.result = None
        self.all.clear()
        assert self.bench.live_bytes() == self.before
        assert len(registry.live()) == self.registered


def test_graphs_pools_and_tensors_end_in_any_order(facade: Facade) -> None:
    class Bound(Lifetimes):
        def __init__(self) -> None:
            super().__init__(facade)

    profiles.load()
    run_state_machine_as_test(Bound, settings=settings(stateful_step_count=30))
