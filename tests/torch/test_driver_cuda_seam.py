"""The seam between torch's CUDA graphs and core's CUDA driver, with both played by stand-ins.

What runs on a machine without a GPU: the order of calls, above all when something breaks. What the
calls do is for ``test_driver_cuda.py``, on a machine with a GPU. Here are replays, executables and
updates.
"""

from __future__ import annotations

import threading

import pytest
import torch

from tensorplay_core import graph as capture
from tensorplay_core.errors import CaptureError, GraphStateError, ReplayError
from tensorplay_torch import staging
from tensorplay_torch.resources import generators

from .cuda_seam import UNTRACKED, Graph, captured
from .cuda_world import Stream


def test_the_first_replay_is_torchs_and_later_ones_are_direct(world):
    g = captured(world)
    place = len(world.log)
    for _ in range(3):
        g.replay()
    assert world.since(place) == [("torch replay", 0), ("direct launch", 0), ("direct launch", 0)]


def test_a_graph_that_draws_is_always_torchs(world):
    world.draws = True
    g = captured(world)
    place = len(world.log)
    for _ in range(3):
        g.replay()
    assert world.since(place) == [("torch replay", 0)] * 3


def test_where_a_generator_may_be_missed_replays_stay_torchs(world, monkeypatch):
    monkeypatch.setattr(generators, "TAKES_IN_ANY", True)
    unseen, seen = captured(world), captured(world, track_operands=True)
    place = len(world.log)
    for g in (unseen, seen):
        g.replay()
        g.replay()
    assert world.since(place) == [("torch replay", 0)] * 3 + [("direct launch", 0)]


def test_an_explicit_stream_is_made_current_around_torchs_replay_only(world):
    g = captured(world)
    place = len(world.log)
    chosen = Stream(55)
    g.replay(chosen)
    g.replay(chosen)
    g.replay(56)
    assert world.since(place) == [
        ("torch replay", 55),
        ("direct launch", 55),
        ("direct launch", 56),
    ]


def test_an_undecided_graph_is_not_replayed_inside_a_capture(world):
    g = captured(world)
    with (
        capture(Graph(device=0), **UNTRACKED),
        pytest.raises(GraphStateError, match="random generators"),
    ):
        g.replay()
    g.replay()


def test_a_closed_graph_frees_torchs_after_the_launches_are_drained(world):
    g = captured(world)
    replay = g.replay
    g.replay()
    place = len(world.log)
    g.close()
    ended = world.since(place)
    assert ended.index("drain") < ended.index("reset")
    assert not +world.begun
    with pytest.raises(GraphStateError):
        g.replay()
    del replay


@pytest.mark.parametrize("use", ["nothing", "upload", "raw_cuda_graph_exec"])
def test_what_was_never_launched_is_not_waited_for(world, use):
    g = captured(world)
    if use != "nothing":
        getattr(g, use)()
    place = len(world.log)
    g.close()
    assert ("end idle" in world.since(place)) == (use == "nothing")
    assert ("drain" in world.since(place)) == (use != "nothing")


def several(world, count=3, **options):
    """Executables of one template, below the facade."""
    g = Graph(device=0, keep_graph=True)
    with capture(g, **options):
        pass
    return g, [world.runtime.graph_instantiate(g._template) for _ in range(count)]


def test_a_graph_that_is_known_not_to_draw_has_several_executables(world):
    g, (first, second, third) = several(world, track_operands=True)
    place = len(world.log)
    for one in (second, first, third, second, first):
        one.launch()
    direct = ("direct launch", 0)
    assert world.since(place) == [direct, ("torch replay", 0), direct, direct, direct]
    assert len({one.raw() for one in (first, second, third)}) == 3
    first.close()
    second.launch()
    for one in (second, third):
        one.close()
    g.close()
    assert not +world.begun


def test_a_launch_tells_as_well_that_nothing_is_drawn(world):
    g, (first,) = several(world, 1, **UNTRACKED)
    first.launch()
    second = world.runtime.graph_instantiate(g._template)
    for one in (first, second):
        one.launch()
        one.close()
    g.close()


@pytest.mark.parametrize("why", ["unknown", "draws", "conditionals"])
def test_torch_has_one_executable_where_it_must_be_torchs(world, why):
    world.draws = why == "draws"
    world.native.once_only = why == "conditionals"
    g, (first,) = several(world, 1, track_operands=why != "unknown")
    if why == "draws":
        first.launch()
    second = world.runtime.graph_instantiate(g._template)
    with pytest.raises(GraphStateError, match="closed"):
        first._through_torch(8, 0)
    second.launch()
    second.close()
    g.close()
    assert not +world.begun


def test_a_kept_graph_instantiates_anew_and_retires_what_was(world):
    g = Graph(device=0, keep_graph=True)
    with capture(g, **UNTRACKED):
        pass
    g.replay()
    old = g._executable
    g.instantiate()
    assert old._closed
    with pytest.raises(GraphStateError, match="closed"):
        old._through_torch(8, 0)
    g.replay()
    g.close()
    assert not +world.begun


# updates


def test_an_update_in_place_needs_to_know_that_nothing_is_drawn(world):
    first, second = captured(world), captured(world)
    assert "never replayed" in first.update(second).reason
    first, second = captured(world), captured(world)
    first.replay()
    assert first.update(second).in_place
    world.draws = True
    third, fourth = captured(world), captured(world)
    third.replay()
    assert "draws random numbers" in third.update(fourth).reason
    for g in (first, third):
        g.close()
    assert not +world.begun


def test_an_update_by_other_kernels_unseen_is_not_in_place(world):
    first, second = captured(world), captured(world)
    first.replay()
    names = iter(["dropout", "add"])
    type(world.native).kernel = property(lambda self: next(names))
    try:
        assert "may draw" in first.update(second).reason
    finally:
        type(world.native).kernel = "add"


def test_an_update_by_the_same_functions_reads_no_names(world):
    first, second, third = captured(world), captured(world), captured(world)
    first.replay()
    type(world.native).functions = (7, 7)
    type(world.native).kernel = property(lambda self: pytest.fail("names were read"))
    try:
        assert first.update(second).in_place
        assert first.update(third).in_place
    finally:
        type(world.native).functions, type(world.native).kernel = None, "add"


def test_an_update_in_the_midst_of_a_call_step_by_step_is_refused_and_waited_for(world):
    first, second = captured(world), captured(world)
    first.replay()
    executable, outcomes = first._executable, []
    thread = threading.Thread(target=lambda: outcomes.append(first.update(second)))
    with executable.taken(None, "staging inputs for"):
        with pytest.raises(ReplayError, match="updating"):
            first.update(second)
        thread.start()
        thread.join(0.05)
        assert not outcomes
    thread.join(60)
    assert outcomes[0].in_place
    for g in (first, second):
        g.close()


@pytest.mark.parametrize("draws", [True, False], ids=["through torch", "directly"])
def test_copies_around_launches_come_after_all_before_whatever_the_stream(world, draws):
    world.draws = draws
    g = captured(world)
    g.replay()

    def call(stream):
        place = len(world.log)
        with world.stream(Stream(stream)), g._executable.taken(None, "staging") as launch:
            launch()
        return [what[0] for what in world.since(place)]

    launch = "torch replay" if draws else "direct launch"
    first, same = call(55), call(55)
    assert first[-2:] == [launch, "record event"]
    assert "follow" in first
    assert same[-2:] == [launch, "record event"]
    assert "wait for event" not in same
    assert call(56)[:2] == ["wait for event", "follow"]
    g.replay()  # On another stream than the call before, which did not see it.
    assert "follow" in call(56)
    with pytest.raises(KeyError), g._executable.taken(None, "staging"):
        raise KeyError
    assert world.log[-1] == ("record event", 0)


@torch.library.custom_op("seam::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)  # Below the operation, where no dispatch mode looks.


@pytest.mark.parametrize(
    ("work", "drew"),
    [(torch.relu, False), (torch.rand_like, True), (opaque, None)],
    ids=["none", "drawn", "unknown"],
)
def test_only_work_that_was_seen_whole_is_known_not_to_draw(world, work, drew):
    g, x = Graph(device=0), torch.ones(3)
    with capture(g):
        work(x)
    assert g._template.captured.watch.drew is drew


def test_repeated_updates_keep_the_last_and_give_back_the_rest(world):
    g = captured(world)
    g.replay()
    for _ in range(4):
        assert g.update(captured(world)).in_place
    # The capture whose executable it is, and the last one.
    assert sum((+world.begun).values()) == 2
    g.close()
    assert not +world.begun


@pytest.mark.parametrize(
    ("shared", "retained", "waits"),
    [(True, False, False), (False, False, True), (True, True, True)],
    ids=["one pool", "pools of their own", "with what it keeps"],
)
def test_what_an_update_replaces_is_waited_for_where_it_frees_anything(
    world, shared, retained, waits
):
    g = captured(world)
    g.replay()
    pool = {"pool": g} if shared else {}
    assert g.update(captured(world, **pool)).in_place
    if retained:
        g.retain(object())
    begun = len(world.log)
    # The work that the first update brought goes: it may still be under way.
    assert g.update(captured(world, **pool)).in_place
    assert ("settle" in world.since(begun)) == waits
    begun = len(world.log)
    g.close()
    assert "drain" in world.since(begun)


def test_an_update_over_a_broken_capture_waits_for_the_memory_it_gives_back(world):
    """The pool has another native id from then on, and the last share in the first goes."""
    g = captured(world)
    g.replay()
    keep = captured(world)
    assert g.update(captured(world, pool=keep)).in_place
    with pytest.raises(CaptureError), capture(Graph(device=0), pool=keep, **UNTRACKED):
        world.broken |= world.capturing
    second = captured(world, pool=keep)
    keep.close()
    begun = len(world.log)
    assert g.update(second).in_place
    assert world.since(begun)[:3] == ["update", "settle", "synchronize"]


@pytest.mark.parametrize("draws", [False, True])
def test_inputs_staged_on_another_stream_outlive_their_copies(world, monkeypatch, draws):
    """From the first call on, which goes step by step, as later ones do if the graph draws."""
    world.draws = draws
    kept = []
    monkeypatch.setattr(staging._CudaPlan, "_outlive", lambda plan, *given: kept.append(given))
    g, x = captured(world), torch.ones(3)
    plan, chosen, given = g.stage([x]), Stream(55), [torch.ones(3)]
    for calls in range(1, 4 if draws else 2):
        plan(given, stream=chosen)
        assert kept == [(given, chosen)] * calls
    kept.clear()
    if draws:
        plan(given)
        assert not kept
