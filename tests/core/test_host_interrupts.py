"""Ctrl-C at any moment of a capture leaves nothing on, and the next capture works."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from tensorplay_core import graph, reclaim, registry, select
from tensorplay_core.errors import GraphStateError
from tensorplay_core.pool import _shares
from tensorplay_core.testing.moments import Moments, in_a_thread

from .host_work import HostGraph

DRIVER: Any = select("host").driver


def surroundings() -> tuple[object, ...]:
    capturing = DRIVER._capturing
    return (
        gc.isenabled(),
        reclaim.captures_live(),
        registry.capturing_here(),
        DRIVER.current,
        len(capturing.live),
        len(DRIVER._pools),
        len(_shares),
        [stream for stream in capturing.streams.values() if stream.lane is not None],
    )


def plain(made: HostGraph, total: Any, flag: Any) -> None:
    with graph(made):
        DRIVER.memset(total, 1.0)


def with_bodies(made: HostGraph, total: Any, flag: Any) -> None:
    with graph(made):
        kept = DRIVER.buffer(1, "f")
        with made.if_then(flag):
            DRIVER.copy(kept, total)
            with made.while_loop(flag, max_steps=2):
                DRIVER.buffer(2, "f")
                DRIVER.memset(total, 2.0)


def with_annotations(made: HostGraph, total: Any, flag: Any) -> None:
    with graph(made, enable_annotations=True), made.if_else(flag) as (then, other):
        with then:
            DRIVER.memset(total, 1.0)
        with other:
            DRIVER.memset(total, 2.0)


def failing(made: HostGraph, total: Any, flag: Any) -> None:
    with pytest.raises(KeyError), graph(made), made.if_then(flag):
        raise KeyError


# Python drops what is raised while it closes a generator or runs a finaliser, and warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", [plain, with_bodies, with_annotations, failing])
@pytest.mark.parametrize("enabled", [True, False], ids=["collecting", "not collecting"])
def test_an_interrupt_at_any_moment_leaves_nothing_on(
    work: Callable[[HostGraph, Any, Any], None], enabled: bool, interrupt_at: Any
) -> None:
    total, flag = DRIVER.buffer([0.0]), DRIVER.buffer([True], "?")
    DRIVER.buffer([0.0])
    gc.collect()  # What other tests left would go in the midst of this one.
    (gc.enable if enabled else gc.disable)()
    try:
        before = surroundings()
        for moment in count(1):
            made, interrupt = HostGraph(), interrupt_at(moment, "tensorplay_core")
            with suppress(KeyboardInterrupt), interrupt.armed():
                work(made, total, flag)
            made.close()
            assert surroundings() == before, interrupt.where
            if not interrupt.where:
                break
            if moment % 16 == 0:
                with graph(HostGraph()) as again:
                    DRIVER.memset(total, 3.0)
                again.replay()
                assert total.tolist() == [3.0]
                again.close()
        assert moment > 100
    finally:
        gc.enable()


def test_an_interrupt_at_any_moment_of_a_replay_leaves_the_turn_to_others(
    interrupt_at: Any,
) -> None:
    total, one = DRIVER.buffer([0.0]), DRIVER.buffer([1.0])

    def add(out: Any, step: Any) -> None:
        out.memory[0] += step.memory[0]

    with graph(HostGraph()) as made:
        DRIVER.launch(add, total, one, writes=(total,))
    with graph(HostGraph(), capture_error_mode="relaxed") as parent:
        made.replay()
        made.replay()
    plan = made.stage([one], [total])
    for run in (made.replay, lambda: plan([one])):
        for moment in count(1):
            interrupt = interrupt_at(moment, "tensorplay_core")
            with suppress(KeyboardInterrupt), interrupt.armed():
                run()
            for other in (made.replay, parent.replay):
                thread = threading.Thread(target=other, daemon=True)
                thread.start()
                thread.join(20)
                assert not thread.is_alive(), interrupt.where
            before = total.tolist()
            made.replay()
            assert total.tolist() == [before[0] + 1.0], interrupt.where
            if not interrupt.where:
                break
        assert moment > 1


def writing(value: float, nodes: int) -> tuple[HostGraph, Any]:
    """A graph that writes a value, in so many nodes, and where."""
    with graph(HostGraph()) as made:
        into = DRIVER.buffer(1, "f")
        for _ in range(nodes):
            DRIVER.memset(into, value)
    return made, into


def runs(made: HostGraph, places: list[Any]) -> list[float] | None:
    """What a replay writes to each of the places; None if it is refused."""
    for place in places:
        place.memory[0] = 0.0
    try:
        made.replay()
    except GraphStateError:
        return None
    return [place.memory[0] for place in places]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("nodes", [1, 2], ids=["in place", "a new executable"])
def test_an_interrupt_at_any_moment_of_an_update_leaves_both_graphs_whole(
    interrupt_at: Any, nodes: int
) -> None:
    gc.collect()
    before, seen = surroundings(), set()
    for moment in count(1):
        (first, one), (second, two) = writing(1.0, 1), writing(2.0, nodes)
        first.replay()
        second.replay()
        interrupt = interrupt_at(moment, "tensorplay_core")
        with suppress(KeyboardInterrupt), interrupt.armed():
            first.update(second)
        found = runs(first, [one, two]), runs(second, [one, two])
        assert found in (([1.0, 0.0], [0.0, 2.0]), ([0.0, 2.0], None)), interrupt.where
        assert first.node_count == (1 if found[1] else nodes), interrupt.where
        seen.add(found[1] is None)
        first.close()
        second.close()
        del one, two, first, second
        assert surroundings() == before, interrupt.where
        if not interrupt.where:
            break
    assert seen == {True, False}


@pytest.mark.parametrize("how", ["reset", "close"])
def test_an_interrupt_at_any_moment_of_a_graph_s_end_loses_nothing(
    interrupt_at: Any, how: str
) -> None:
    gc.collect()
    before = surroundings()
    for moment in count(1):
        made, into = writing(1.0, 1)
        interrupt = interrupt_at(moment, "tensorplay_core")
        with suppress(KeyboardInterrupt), interrupt.armed():
            getattr(made, how)()
        assert runs(made, [into]) in ([1.0], None), interrupt.where
        made.close()
        del into, made
        assert surroundings() == before, interrupt.where
        if not interrupt.where:
            break
    assert moment > 10


def test_a_signal_handler_may_update_other_graphs_at_any_moment_of_an_update() -> None:
    def attempt(number: int) -> Moments:
        graphs = [writing(float(value), 1) for value in range(1, 5)]
        (first, one), (second, two), (third, three), (fourth, four) = graphs
        first.replay()
        third.replay()
        moments = Moments(number, lambda: third.update(fourth))
        in_a_thread(lambda: first.update(second), moments)
        if not moments.where:
            third.update(fourth)
        assert runs(first, [one, two]) == [0.0, 2.0], moments.where
        assert runs(third, [three, four]) == [0.0, 4.0], moments.where
        for made, _ in graphs:
            made.close()
        return moments

    for number in attempt(0).first.values():
        attempt(number)
