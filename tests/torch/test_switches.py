"""Switches of torch that are the whole process's, when replays of several threads want them set."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensorplay_torch as tp
from tensorplay_torch.cpu import switches
from tensorplay_torch.cpu.switches import Held, Wanted, holders, settings


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What is found is found again, and nothing is held any more."""
    before, interval = settings(), sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    after = settings()
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(before.deterministic[0])  # type: ignore[index]
    assert (after, holders()) == (before, [])


def at_once(*works: Callable[[], object]) -> list[BaseException]:
    failed: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def divided(dtype: torch.dtype) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A graph whose integers are divided in ``dtype``, its result, and what that is to be."""
    numbers = torch.arange(1, 65)
    torch.set_default_dtype(dtype)
    try:
        with tp.graph(tp.CUDAGraph(device="cpu")) as g:
            for _ in range(20):
                y = numbers / 3
        return g, y, numbers / 3
    finally:
        torch.set_default_dtype(torch.float32)


def test_replays_with_different_default_dtypes_at_once() -> None:
    sys.setswitchinterval(1e-5)
    made = [divided(torch.float64), divided(torch.float32), divided(torch.float64)]
    for _ in range(10):
        for _, y, _ in made:
            y.zero_()
        assert at_once(*(lambda g=g: [g.replay() for _ in range(50)] for g, _, _ in made)) == []
        assert torch.get_default_dtype() is torch.float32
        for _, y, wanted in made:
            assert y.dtype is wanted.dtype
            assert torch.equal(y, wanted)


def test_replays_whose_blocks_switched_at_once() -> None:
    sys.setswitchinterval(1e-5)

    def switching() -> Any:
        with tp.graph(tp.CUDAGraph(device="cpu")) as g:
            torch.use_deterministic_algorithms(True)
            x = torch.ones(64) + 1
            torch.use_deterministic_algorithms(False)
            x * 1
        return g

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        made = [switching(), switching()]
        for _ in range(10):
            assert at_once(*(lambda g=g: [g.replay() for _ in range(50)] for g in made)) == []
            assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)


WANTED = st.builds(
    Wanted,
    mkldnn=st.none() | st.booleans(),
    deterministic=st.none() | st.tuples(st.booleans(), st.booleans()),
    threads=st.sampled_from([None, 1, 2]),
    dtype=st.none() | st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)


@given(st.lists(WANTED, max_size=5), st.data())
def test_whoever_holds_last_has_it_his_way_and_in_the_end_all_is_as_found(
    wanted: list[Wanted], data: st.DataObject
) -> None:
    found, held = settings(), []
    for one in wanted:
        held.append((one, Held(one)))
        held[-1][1].enter()
        assert all(
            value is None or value == now for value, now in zip(one, settings(), strict=True)
        )
    while held:
        _, left = held.pop(data.draw(st.integers(0, len(held) - 1)))
        left.leave()
        left.leave()
        for place, (now, before) in enumerate(zip(settings(), found, strict=True)):
            asked = [one[place] for one, _ in held if one[place] is not None]
            assert now == (asked[-1] if asked else before)
    assert settings() == found


def test_replays_that_would_wait_for_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is inside a replay that holds what the other wants otherwise."""
    monkeypatch.setattr(switches, "PATIENCE", 0.2)
    both, refused = threading.Barrier(2, timeout=20), []

    def nested(mine: Wanted, then: Wanted) -> None:
        first, second = Held(mine), Held(then)
        try:
            first.enter()
            both.wait()
            second.enter()
        except tp.ReplayError as error:
            refused.append(error)
        finally:
            second.leave()
            first.leave()

    on, off = (True, False), (False, False)
    assert (
        at_once(
            lambda: nested(Wanted(dtype=torch.float64), Wanted(deterministic=on)),
            lambda: nested(Wanted(deterministic=off), Wanted(dtype=torch.float32)),
        )
        == []
    )
    assert len(refused) in (1, 2)


def test_who_waits_is_not_overtaken_for_ever() -> None:
    sys.setswitchinterval(1e-5)
    g64, y64, wanted = divided(torch.float64)
    others, stop = [divided(torch.float32)[0] for _ in range(2)], threading.Event()

    def busy(g: Any) -> None:
        while not stop.is_set():
            g.replay()

    threads = [threading.Thread(target=busy, args=(g,)) for g in others]
    for thread in threads:
        thread.start()
    served = threading.Thread(target=lambda: [g64.replay() for _ in range(20)])
    served.start()
    served.join(60)
    late = served.is_alive()
    stop.set()
    for thread in (*threads, served):
        thread.join()
    assert not late
    assert torch.equal(y64, wanted)


def test_staged_calls_and_replays_of_one_turn_do_not_wait_for_each_other() -> None:
    sys.setswitchinterval(1e-5)
    x, x2 = torch.ones(4), torch.ones(4)
    with tp.graph(tp.CUDAGraph(device="cpu")) as g32:
        x * 2
    torch.set_default_dtype(torch.float64)
    try:
        with tp.graph(tp.CUDAGraph(device="cpu")) as g64:
            g32.replay()
            z = x2 + 1
    finally:
        torch.set_default_dtype(torch.float32)
    plan, given = g64.stage([x2], [z]), [torch.ones(4)]
    works = (
        lambda: [g32.replay() for _ in range(2000)],
        lambda: [plan(given) for _ in range(2000)],
    )
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_an_interrupt_at_any_moment_leaves_no_switch_held(interrupt_at: Any) -> None:
    g, y, wanted = divided(torch.float64)
    for moment in count(1):
        interrupt = interrupt_at(
            moment, "tensorplay_torch/cpu/switches", "tensorplay_torch/cpu/iso"
        )
        with suppress(KeyboardInterrupt), interrupt.armed():
            g.replay()
        assert holders() == [], interrupt.where
        assert torch.get_default_dtype() is torch.float32, interrupt.where
        if not interrupt.where:
            break
    assert moment > 10
    assert torch.equal(y, wanted)


@pytest.mark.parametrize("outer", [torch.float32, torch.float64])
def test_a_child_graph_has_the_default_dtype_that_it_was_captured_with(outer: torch.dtype) -> None:
    children = [divided(torch.float64), divided(torch.float32)]
    numbers = torch.arange(1, 65)
    torch.set_default_dtype(outer)
    try:
        with tp.graph(tp.CUDAGraph(device="cpu")) as parent:
            for child, _, _ in children:
                child.replay()
            own = numbers / 3
        expected = numbers / 3
    finally:
        torch.set_default_dtype(torch.float32)
    for _, y, _ in children:
        y.zero_()
    for _ in range(2):
        parent.replay()
        for _, y, wanted in children:
            assert torch.equal(y, wanted)
        assert torch.equal(own, expected)
