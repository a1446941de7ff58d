"""The torch driver's seam on stand-ins: bodies of conditional nodes."""

from __future__ import annotations

import pytest
import torch

from tensorplay_core import graph as capture
from tensorplay_core.errors import OperationRefused, UnsupportedByDriver
from tensorplay_torch import _private

from .cuda_seam import UNTRACKED, Graph, works_again


def flag():
    # The stand-in for a Bool on the device: checks of it are for where there is one.
    return torch.tensor(True)


@pytest.fixture(autouse=True)
def any_predicate(monkeypatch):
    from tensorplay_torch.cuda import bodies as cuda_bodies

    monkeypatch.setattr(cuda_bodies, "checked", lambda predicate, kind, device: predicate)


def test_a_body_runs_on_a_stream_and_from_memory_of_its_own(world):
    g = Graph(device=0)
    with capture(g, **UNTRACKED):
        outer = world.current
        with g.if_then(flag()):
            assert world.current not in (outer, 0)
            routes = list(world.routes)
            assert len(routes) == 3
            with g.if_then(flag()):
                assert len(set(world.routes)) == 5
            assert world.routes == routes
        assert world.current == outer
        assert len(world.routes) == 1
    g.close()
    assert not +world.begun


def test_bodies_of_one_depth_share_a_stream_and_memory(world):
    g, ran = Graph(device=0), []
    with capture(g, **UNTRACKED):
        with g.if_else(flag()) as (then, other):
            with then:
                ran.append((world.current, world.routes[-2:]))
            with other:
                ran.append((world.current, world.routes[-2:]))
        with g.if_then(flag()):
            ran.append((world.current, world.routes[-2:]))
    assert ran[0] == ran[1] == ran[2]
    g.close()
    assert not +world.begun


def test_a_failing_body_is_left_before_anything_is_ended(world):
    g = Graph(device=0)
    with pytest.raises(KeyError), capture(g, **UNTRACKED), g.if_then(flag()), g.if_then(flag()):
        place = len(world.log)
        raise KeyError
    ended = world.since(place)
    assert ended[:4] == ["end route"] * 4
    assert ended[4:7] == ["abort bodies", "capture_end", "bury"]
    assert not +world.begun
    works_again(world)


def test_a_poisoned_graph_is_never_destroyed_but_gives_its_memory_back(world):
    world.native.poison = "a conditional body was invalidated"
    g = Graph(device=0)
    with pytest.raises(KeyError), capture(g, **UNTRACKED), g.if_then(flag()):
        place, lane = len(world.log), world.current
        raise KeyError
    assert "reset" not in world.since(place)
    assert not +world.begun
    world.native.poison = ""
    works_again(world)
    # Nobody may capture on the stream of the body that broke.
    g, ran = Graph(device=0), []
    with capture(g, **UNTRACKED), g.if_then(flag()):
        ran.append(world.current)
    assert ran != [lane]


def test_a_body_that_cannot_route_is_closed_again(world, monkeypatch):
    missing = _private.Private(None, "bodies cannot allocate")
    monkeypatch.setitem(_private.PRIVATE, "begin_allocate_thread", missing)
    g = Graph(device=0)
    with (
        pytest.raises(UnsupportedByDriver, match="bodies cannot allocate"),
        capture(g, **UNTRACKED),
        g.if_then(flag()),
    ):
        pytest.fail("the body was entered")
    assert "exit body" in world.log
    assert not +world.begun


@pytest.mark.parametrize("tracked", [True, False])
def test_random_numbers_in_a_body_are_refused_with_and_without_tracking(world, tracked):
    g, x = Graph(device=0), torch.ones(3)
    with (
        pytest.raises(OperationRefused, match="random numbers cannot be drawn"),
        capture(g, track_operands=tracked),
        g.if_then(flag()),
    ):
        torch.rand_like(x)
    works_again(world)


def test_host_memory_that_a_body_uses_is_kept(world):
    g, x = Graph(device=0), torch.ones(3)
    storage = x.untyped_storage()
    with capture(g, **UNTRACKED), g.if_then(flag()):
        x + 1
    kept = g._template.captured.watch._random.kept
    assert any(one is storage for one in kept)
    g.close()
    assert not kept
