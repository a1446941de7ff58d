"""Replays among and inside each other: graphs with child graphs, finalisers, signal handlers."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core.drivers.host import arrays
from tensorplay_core.drivers.host.turn import Turn, Turns, turn_of
from tensorplay_core.errors import GraphStateError, ReplayError


def captured(host: Any, *works: Callable[[], object], pool: Any = None) -> Any:
    with host.capture("relaxed", pool=pool) as made:
        for place, work in enumerate(works):
            host.driver.submit(work, name=f"work {place}")
    return host.executable(made)


def parent_of(host: Any, *children: Any) -> Any:
    with host.capture("relaxed") as made:
        for child in children:
            child.launch()
    return host.executable(made)


class Meeting:
    """Work in two halves, which notices another thread between them."""

    def __init__(self) -> None:
        self.inside, self.met, self.runs = 0, False, 0

    def begin(self) -> None:
        self.inside += 1
        self.met = self.met or self.inside > 1

    def end(self) -> None:
        self.inside -= 1
        self.runs += 1


def in_threads(*works: Callable[[], object]) -> list[BaseException]:
    failed: list[BaseException] = []
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            barrier.wait()
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "two replays wait for each other"
    return failed


@pytest.mark.parametrize("depth", [1, 2])
def test_a_child_graph_and_its_parents_take_turns(host: Any, depth: int) -> None:
    meeting, pause = Meeting(), threading.Event()
    child = captured(host, meeting.begin, lambda: pause.wait(0.001), meeting.end)
    parents = [parent_of(host, child) for _ in range(2)]
    if depth == 2:
        parents = [parent_of(host, parent) for parent in parents]

    def often(one: Any) -> Callable[[], None]:
        return lambda: [one.launch() for _ in range(20)] and None

    assert in_threads(*map(often, (child, *parents))) == []
    assert not meeting.met
    assert meeting.runs == 60


def test_parents_of_children_in_each_others_pools_do_not_wait_for_each_other(host: Any) -> None:
    pools = [host.runtime.pool_create("host") for _ in range(2)]
    leaves = [captured(host, lambda: None, pool=pool) for pool in pools]

    def parent(child: Any, pool: Any) -> Any:
        with host.capture("relaxed", pool=pool) as made:
            child.launch()
        return host.executable(made)

    crossed = [parent(leaves[0], pools[1]), parent(leaves[1], pools[0])]
    runs = [lambda one=one: [one.launch() for _ in range(2000)] for one in crossed]
    assert in_threads(*runs) == []


def test_a_replay_inside_itself_is_refused_by_name(host: Any) -> None:
    seen: list[Any] = []

    def again() -> None:
        with pytest.raises(ReplayError) as caught:
            made.launch()
        seen.append(caught.value)

    made = captured(host, again, lambda: seen.append("after"))
    made.launch()
    assert "in the middle of a replay" in seen[0].met
    assert seen[1:] == ["after"]
    made.launch()
    assert len(seen) == 4


def test_a_replay_inside_one_that_shares_its_pool_is_refused(host: Any) -> None:
    pool = host.runtime.pool_create("host")
    other = captured(host, lambda: None, pool=pool)

    def inside() -> None:
        with pytest.raises(ReplayError):
            other.launch()

    captured(host, inside, pool=pool).launch()
    other.launch()


def test_a_replay_inside_one_that_shares_nothing_runs(host: Any) -> None:
    seen: list[str] = []
    other = captured(host, lambda: seen.append("inner"))
    made = captured(host, other.launch, lambda: seen.append("outer"))
    made.launch()
    assert seen == ["inner", "outer"]


def test_a_plan_inside_a_replay_of_its_graph_is_refused_and_writes_nothing(host: Any) -> None:
    x, seen = host.driver.buffer([1.0]), []

    def inside() -> None:
        with pytest.raises(ReplayError):
            plan([host.driver.buffer([2.0])])
        seen.append(x.tolist())

    made = captured(host, inside)
    plan = host.runtime.stage(made, [x], [])
    made.launch()
    assert seen == [[1.0]]


def test_a_finaliser_that_replays_is_answered_and_not_waited_for(host: Any) -> None:
    met: list[BaseException] = []

    class Finaliser:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            try:
                made.launch()
            except ReplayError as error:
                met.append(error)

    made = captured(host, Finaliser, gc.collect)
    made.launch()
    assert len(met) == 1


def test_a_signal_handler_that_replays_is_answered_and_not_waited_for(host: Any) -> None:
    met: list[BaseException] = []

    def handler(number: int, frame: object) -> None:
        try:
            made.launch()
        except ReplayError as error:
            met.append(error)

    made = captured(host, lambda: signal.raise_signal(signal.SIGUSR1), lambda: None)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        made.launch()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(met) == 1


def test_replays_inside_each_other_in_two_threads_do_not_wait_for_ever(host: Any) -> None:
    both, met = threading.Barrier(2), []
    made: list[Any] = []

    def work(other: int) -> Callable[[], None]:
        def inside() -> None:
            both.wait(60)
            try:
                made[other].launch()
            except ReplayError as error:
                met.append(error)

        return inside

    inner = threading.local()

    def once(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            if not getattr(inner, "there", False):
                inner.there = True
                work()

        return run

    made += [captured(host, once(work(1))), captured(host, once(work(0)))]
    assert in_threads(made[0].launch, made[1].launch) == []
    assert len(met) == 1


def test_a_graph_may_be_closed_inside_replays_that_wait_for_each_other(host: Any) -> None:
    both = threading.Barrier(2)
    made: list[Any] = []

    def close(other: int) -> Callable[[], None]:
        def inside() -> None:
            both.wait(60)
            made[other].close()

        return inside

    made += [captured(host, close(1)), captured(host, close(0))]
    assert in_threads(made[0].launch, made[1].launch) == []
    for one in made:
        with pytest.raises(GraphStateError):
            one.launch()


def test_a_graph_may_be_closed_in_the_midst_of_poisoning_memory_that_others_wait_for(
    host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, both, met = host.runtime.pool_create("host"), threading.Barrier(2), []
    first = captured(host, lambda: None, pool=pool)

    def inside() -> None:
        both.wait(60)
        first.launch()
        met.append("launched")

    def poisoned(memory: Any) -> None:
        monkeypatch.setattr(arrays, "poison", poison)
        both.wait(60)
        time.sleep(0.1)  # By now the launch in the other thread waits.
        outer.close()
        poison(memory)

    outer, poison = captured(host, inside), arrays.poison
    monkeypatch.setattr(arrays, "poison", poisoned)

    def capture() -> None:
        with host.capture("relaxed", pool=pool):
            host.driver.buffer(16)

    assert in_threads(outer.launch, capture) == []
    assert met == ["launched"]


def test_memory_of_a_pool_is_not_reused_inside_its_own_replay(host: Any) -> None:
    """A thread that captures on one stream may launch on another, beside its capture."""
    pool, seen = host.runtime.pool_create("host"), []

    def inside() -> None:
        with pytest.raises(ReplayError):
            host.driver.buffer(16)
        seen.append(True)

    first = captured(host, inside, pool=pool)
    with host.capture("relaxed", pool=pool):
        first.launch(host.driver.stream())
        host.driver.buffer(16)
    assert seen == [True]


def test_a_launch_that_waited_runs_what_is_there_then(host: Any) -> None:
    begun, go, seen = threading.Event(), threading.Event(), []
    made = captured(host, lambda: (begun.set(), go.wait(60), seen.append("old")))

    def close() -> None:
        begun.wait(60)
        closing = threading.Thread(target=made.close)
        closing.start()
        waiting = threading.Thread(target=attempt)
        waiting.start()
        go.set()
        closing.join()
        waiting.join()

    def attempt() -> None:
        try:
            made.launch()
        except GraphStateError:
            seen.append("refused")

    assert in_threads(made.launch, close) == []
    assert seen in (["old", "refused"], ["old", "old"])


def test_several_turns_are_one_or_none() -> None:
    first, second = Turn(), Turn()
    both = turn_of([first, second, first])
    assert isinstance(both, Turns)
    assert turn_of([first, first]) is first
    assert set(turn_of([both, first]).parts) == {first, second}

    def held() -> list[bool]:
        found: list[bool] = []
        thread = threading.Thread(
            target=lambda: found.extend(
                one.lock.acquire(blocking=False) and not one.lock.release()
                for one in (first, second)
            )
        )
        thread.start()
        thread.join()
        return [not free for free in found]

    with both.lock:
        assert held() == [True, True]
    assert held() == [False, False]
    taken: list[bool] = []
    with second.lock:
        thread = threading.Thread(target=lambda: taken.append(both.lock.acquire(blocking=False)))
        thread.start()
        thread.join()
    assert taken == [False]
    assert held() == [False, False]
