"""Of a graph among threads: replays serialised, captures beside other threads' work."""

from __future__ import annotations

import threading

import pytest

from tensorplay_core.errors import GraphStateError
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import captures_again, four_parts, unchanged


def test_one_graphs_replays_from_many_threads_are_serialised(
    workbench: Workbench, facade: Facade
) -> None:
    total, each, failed = workbench.buffer([0.0]), 50, []
    made = facade.record(lambda: workbench.add_(total, 1.0))
    barrier = threading.Barrier(4)

    def run() -> None:
        try:
            barrier.wait()
            for _ in range(each):
                made.replay()
                workbench.synchronize()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert workbench.read(total) == [4.0 * each]


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_other_threads_may_allocate_during_a_capture(
    workbench: Workbench, facade: Facade, mode: str
) -> None:
    total, seen, begun, done = workbench.buffer([0.0]), [], threading.Event(), threading.Event()

    def allocate() -> None:
        begun.wait(10)
        seen.append(workbench.buffer([1.0, 2.0]))
        done.set()

    other = threading.Thread(target=allocate)
    other.start()

    def work() -> None:
        workbench.add_(total, 1.0)
        begun.set()
        assert done.wait(10)
        workbench.add_(total, 1.0)

    made = facade.record(work, capture_error_mode=mode)
    other.join()
    made.replay()
    assert workbench.read(total) == [2.0]
    assert workbench.read(seen[0]) == [1.0, 2.0]


def test_threads_may_capture_at_once(workbench: Workbench, facade: Facade) -> None:
    totals = [workbench.buffer([0.0]) for _ in range(3)]
    made, failed, barrier = {}, [], threading.Barrier(3)

    def capture(place: int) -> None:
        try:
            barrier.wait()
            made[place] = facade.record(
                lambda: workbench.add_(totals[place], place + 1.0),
                capture_error_mode="thread_local",
            )
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=capture, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for place in range(3):
        made[place].replay()
    assert [workbench.read(total) for total in totals] == [[1.0], [2.0], [3.0]]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "let go"])
def test_the_capture_of_a_thread_that_ended_is_discarded(
    workbench: Workbench, facade: Facade, kept: bool
) -> None:
    total, made = workbench.buffer([0.0]), [facade.new()]

    def begin() -> None:
        made[0].capture_begin(capture_error_mode="thread_local")
        workbench.add_(total, 1.0)
        if not kept:
            made.clear()

    with unchanged(facade):
        thread = threading.Thread(target=begin, name="short-lived")
        thread.start()
        thread.join()
    captures_again(facade)
    for one in made:
        for use in (one.capture_end, one.replay, one.instantiate):
            with unchanged(facade), pytest.raises(GraphStateError) as caught:
                use()
            four_parts(caught.value)
            assert "short-lived" in str(caught.value)
        with facade.capture(one):
            workbench.add_(total, 5.0)
        one.replay()
        assert workbench.read(total) == [5.0]


@pytest.mark.needs("conditional_open")
def test_a_body_left_open_by_a_thread_that_ended_is_discarded(
    workbench: Workbench, facade: Facade
) -> None:
    flag, total, made = workbench.flag(True), workbench.buffer([0.0]), facade.new()

    def begin() -> None:
        made.capture_begin(capture_error_mode="thread_local")
        made.begin_capture_to_if_node(flag)
        workbench.add_(total, 1.0)

    with unchanged(facade):
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    captures_again(facade)
    assert workbench.read(total) == [0.0]
