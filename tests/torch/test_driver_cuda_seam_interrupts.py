"""Interrupts at any moment of captures, updates and ends on CUDA, on the stand-ins."""

from __future__ import annotations

import gc
from contextlib import suppress
from itertools import count

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tensorplay_core import graph as capture
from tensorplay_core import reclaim, registry
from tensorplay_torch.tracking import turns
from tensorplay_torch.tracking.surroundings import SWITCHES

from .cuda_seam import UNTRACKED, Graph, captured, played, works_again

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
OURS = ("tensorplay_core", "tensorplay_torch")


@pytest.fixture
def world(monkeypatch):
    with played(monkeypatch) as made:
        yield made


def surroundings(world):
    return {
        "turn": turns.taken(),
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


@pytest.mark.parametrize("scene", [captures, updates, ends, breaks, fails])
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
