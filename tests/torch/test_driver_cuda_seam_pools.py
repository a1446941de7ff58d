"""The torch driver's seam on stand-ins: streams and pools, and the pool that is kept in reserve."""

from __future__ import annotations

import pytest

from tensorplay_core import graph as capture
from tensorplay_core.errors import CaptureInvalidated

from .cuda_seam import UNTRACKED, Graph, captured
from .cuda_world import GPU, Stream


def test_a_pool_has_one_stream_and_another_is_honoured_with_one_warning(world):
    pool, ran = world.runtime.pool_create(GPU), []

    def record(stream=None):
        g = Graph(device=0)
        with capture(g, pool.id, stream, **UNTRACKED):
            ran.append(world.current)
        return g

    kept = [record(), record()]
    assert ran[0] == ran[1]
    chosen = Stream(77)
    with pytest.warns(RuntimeWarning, match="reuses memory within one stream"):
        kept.append(record(chosen))
    kept.append(record(chosen))  # Once is enough: warnings are errors here.
    assert ran[2:] == [77, 77]


def test_the_first_stream_named_for_a_pool_becomes_its_own(world):
    pool, ran = world.runtime.pool_create(GPU), []
    kept = []
    for stream in (Stream(66), None):
        kept.append(Graph(device=0))
        with capture(kept[-1], pool.id, stream, **UNTRACKED):
            ran.append(world.current)
    assert ran == [66, 66]


def test_streams_go_back_with_their_pool_and_serve_again(world):
    ran = []
    for _ in range(5):
        g = Graph(device=0)
        with capture(g, **UNTRACKED):
            ran.append(world.current)
        g.close()
    assert len(set(ran)) == 1
    first, second = captured(world), captured(world)
    streams = [g._shared_pool.pool.stream.cuda_stream for g in (first, second)]
    assert streams[0] != streams[1]


def test_a_pool_that_is_held_between_captures_serves_the_next(world):
    """As groups of callables do: torch refuses an id whose captures are all gone."""
    from tensorplay_core.pool import acquire

    held = acquire(world.runtime, None, GPU)
    natives = []
    for broken in (False, False, True, False, False):
        g = Graph(device=0)
        if broken:
            with pytest.raises(CaptureInvalidated), capture(g, held, **UNTRACKED):
                world.broken.add(world.current)
        else:
            with capture(g, held, **UNTRACKED):
                natives.append(world.routes[-1])
            g.close()
            assert world.begun[natives[-1]] == 1
    # torch goes on taking a broken capture for under way, and would refuse its id.
    assert natives[0] == natives[1] != natives[2] == natives[3]
    held.release()
    assert not +world.begun


def test_an_aborted_capture_keeps_the_id_of_a_held_pool_good(world):
    from tensorplay_core.pool import acquire

    held = acquire(world.runtime, None, GPU)
    for _ in range(3):
        with pytest.raises(KeyError), capture(Graph(device=0), held, **UNTRACKED):
            raise KeyError
        assert sum((+world.begun).values()) == 1
    held.release()
    assert not +world.begun


# spares


def cycle(world):
    """Captures and closes; returns the stream, the id in torch and the id that users see."""
    g = Graph(device=0)
    with capture(g, **UNTRACKED):
        found = world.current, world.routes[-1], g._shared_pool.pool.id
    g.replay()
    g.close()
    return found


def test_an_idle_pool_goes_to_the_next_graph_under_another_name(world):
    world.live = 0
    (stream, native, _), *others = seen = [cycle(world) for _ in range(4)]
    assert all(one[:2] == (stream, native) for one in others)
    assert len({id for *_, id in seen}) == 4
    assert world.begun[native] == 1
    world.live = 512  # Somebody has kept a tensor of the last one.
    assert cycle(world)[:2] == (stream, native)
    assert not +world.begun
    assert cycle(world)[1] != native


def test_one_pool_is_kept_and_a_second_has_its_own(world):
    world.live = 0
    first, second = captured(world), captured(world)
    assert first._shared_pool.pool.native != second._shared_pool.pool.native
    first.close()
    second.close()
    assert sum((+world.begun).values()) == 1
    third, fourth = captured(world), captured(world)
    streams = [g._shared_pool.pool.stream.cuda_stream for g in (third, fourth)]
    assert streams[0] != streams[1]


def test_a_capture_that_fails_in_a_kept_pool_leaves_it_or_loses_it(world):
    world.live = 0
    _, native, _ = cycle(world)
    with pytest.raises(KeyError), capture(Graph(device=0), **UNTRACKED):
        assert world.routes == [native]
        raise KeyError
    assert cycle(world)[1] == native
    with pytest.raises(CaptureInvalidated), capture(Graph(device=0), **UNTRACKED):
        world.broken.add(world.current)
    world.live = 512
    assert cycle(world)[1] != native
    assert not +world.begun


def test_a_large_pool_is_not_kept(world, monkeypatch):
    monkeypatch.setattr(
        world, "segments", lambda native: [{"device": 0, "total_size": 3 << 20, "active_size": 0}]
    )
    cycle(world)
    assert not +world.begun


def test_a_pool_on_a_stream_of_the_users_is_not_kept_for_others(world):
    world.live = 0
    g = Graph(device=0)
    with capture(g, stream=Stream(66), **UNTRACKED):
        pass
    g.close()
    assert not +world.begun
