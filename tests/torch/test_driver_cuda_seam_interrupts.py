"""Interrupts at any moment of captures, updates and ends on CUDA, on the stand-ins."""

from __future__ import annotations

import gc
import threading
import warnings
from contextlib import suppress
from itertools import count

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tensorplay_core import graph as capture
from tensorplay_core import reclaim, registry
from tensorplay_torch.cuda import bodies as cuda_bodies
from tensorplay_torch.cuda.watch import Watch
from tensorplay_torch.tracking import turns
from tensorplay_torch.tracking.surroundings import SWITCHES

from .cuda_seam import UNTRACKED, Graph, captured, played, works_again

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
OURS = ("tensorplay_core", "tensorplay_torch")


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(cuda_bodies, "checked", lambda predicate, kind, device: predicate)
    with played(monkeypatch) as made:
        monkeypatch.setattr(
            made,
            "segments",
            lambda native: [
                {"device": 0, "total_size": 2 << 20, "active_size": made.live, "address": 64}
            ],
        )
        yield made


def surroundings(world):
    return {
        "turn": turns.is_free(),
        "warnings": list(warnings.filters),
        "stream": world.current,
        "capturing": set(world.capturing),
        "routes": list(world.routes),
        "captures": (reclaim.captures_live(), registry.capturing_here()),
        "switches": [bool(read()) for _, read, _ in SWITCHES],
        "dispatch": list(_get_current_dispatch_mode_stack()),
        "modes": (torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), gc.isenabled()),
        "shares": +world.begun,
    }


def captures(world, options):
    def act(made):
        with capture(made, **options):
            torch.ones(2) + 1

    return act, []


def updates(world, options):
    before = captured(world)
    before.replay()
    for _ in range(2):  # So that the next one lets go of something.
        assert before.update(captured(world, pool=before, **options)).in_place

    def act(made):
        with capture(made, pool=before, **options):
            torch.ones(2) + 1
        before.update(made)

    return act, [before]


def ends(world, options):
    before = captured(world, **options)
    before.replay()

    def act(made):
        with capture(made, pool=before, **options):
            torch.ones(2) + 1
        made.instantiate()
        before.reset()
        made.close()

    return act, [before]


def breaks(world, options):
    def act(made):
        with suppress(Exception), capture(made, **options):
            world.broken |= world.capturing

    return act, []


def fails(world, options):
    class Odd(Exception):
        pass

    def act(made):
        with suppress(Odd), capture(made, **options):
            torch.ones(2) + 1
            raise Odd

    return act, []


def bodies(world, options):
    def act(made):
        with capture(made, **options):
            torch.ones(2) + 1
            with made.if_then(torch.tensor(True)):
                torch.ones(2) + 1
                with made.if_then(torch.tensor(True)):
                    torch.ones(2) + 1

    return act, []


def fails_in_a_body(world, options):
    class Odd(Exception):
        pass

    def act(made):
        with suppress(Odd), capture(made, **options), made.if_then(torch.tensor(True)):
            raise Odd

    return act, []


def breaks_after_a_body(world, options):
    def act(made):
        with suppress(Exception), capture(made, **options):
            with made.if_then(torch.tensor(True)):
                torch.ones(2) + 1
            world.broken |= world.capturing

    return act, []


def shares_a_pool(world, options):
    others = [captured(world)]
    others.append(captured(world, pool=others[0]))

    def act(made):
        with capture(made, pool=others[0], **options):
            torch.ones(2) + 1
        for one in (others[0], made, others[1]):
            one.close()

    return act, others


def is_not_updated_in_place(world, options):
    before = captured(world)
    before.replay()

    def act(made):
        world.draws = True
        try:
            with capture(made, **options):
                torch.ones(2) + 1
            made.replay()
        finally:
            world.draws = False
        before.update(made)

    return act, [before]


def is_refused(world, options):
    def act(made):
        world.refuse_begin = True
        try:
            with suppress(Exception), capture(made, **options):
                torch.ones(2) + 1
        finally:
            world.refuse_begin = False

    return act, []


SCENES = [
    captures,
    updates,
    ends,
    breaks,
    fails,
    bodies,
    fails_in_a_body,
    breaks_after_a_body,
    shares_a_pool,
    is_not_updated_in_place,
    is_refused,
]


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("tracked", [False, True], ids=["untracked", "tracked"])
def test_an_interrupt_at_any_moment_leaves_nothing_on(world, interrupt_at, scene, tracked):
    options = {} if tracked else UNTRACKED
    act, others = scene(world, options)
    act(Graph(device=0))  # What is remembered at first use, is now.
    for one in others:
        one.close()
    works_again(world)
    for moment in count(1):
        before, made = surroundings(world), Graph(device=0)
        act, others = scene(world, options)
        interrupt = interrupt_at(moment, *OURS)
        with suppress(KeyboardInterrupt), interrupt.armed():
            act(made)
        for one in (made, *others):
            one.close()
        assert surroundings(world) == before, interrupt.where
        if not interrupt.where:
            break
        works_again(world)
    assert moment > 60


def test_an_interrupt_in_the_wait_for_a_turn_leaves_the_other_capture_alone(world, monkeypatch):
    """Both are to run on the stream of one pool, which the other thread captures meanwhile."""
    shared, other = captured(world), Graph(device=0)
    asked, begun, over = threading.Event(), threading.Event(), threading.Event()
    take, main = turns.take, threading.current_thread()
    failed = []

    def interrupted(taken):
        if threading.current_thread() is main:
            asked.set()
            begun.wait(10)
            raise KeyboardInterrupt
        take(taken)

    def captures_too():
        asked.wait(10)
        try:
            with capture(other, pool=shared, **UNTRACKED):
                begun.set()
                over.wait(10)
        except BaseException as error:
            failed.append(error)

    monkeypatch.setattr(turns, "take", interrupted)
    thread = threading.Thread(target=captures_too)
    thread.start()
    made = Graph(device=0)
    with pytest.raises(KeyboardInterrupt), capture(made, pool=shared, **UNTRACKED):
        pass
    over.set()
    thread.join()
    monkeypatch.setattr(turns, "take", take)
    assert failed == []
    other.replay()
    for one in (made, other, shared):
        one.close()
    assert not +world.begun
    works_again(world)


def test_a_capture_that_somebody_else_ended_is_given_back(world):
    class Odd(Exception):
        pass

    with pytest.raises(Odd), capture(Graph(device=0), **UNTRACKED):
        world.capturing.clear()
        raise Odd
    assert not world.routes
    assert not +world.begun
    works_again(world)


def test_the_turn_is_kept_until_the_capture_is_undone(world, monkeypatch):
    stop, seen = Watch.stop, []

    def interrupted(watch):
        seen.append((turns.is_free(), bool(world.capturing)))
        if len(seen) == 1:
            raise KeyboardInterrupt
        stop(watch)

    with pytest.raises(KeyboardInterrupt), capture(Graph(device=0), **UNTRACKED):
        monkeypatch.setattr(Watch, "stop", interrupted)
        raise ValueError
    assert seen[:2] == [(False, True), (False, True)]
    works_again(world)


def test_a_turn_that_a_thread_left_behind_is_given_by_another():
    taken = []
    thread = threading.Thread(target=turns.take, args=(taken,))
    thread.start()
    thread.join()
    assert not turns.is_free()
    for _ in range(2):
        turns.give(taken)
    assert turns.is_free()
