"""The torch driver's seam on stand-ins: what breaks a capture, and what is undone then."""

from __future__ import annotations

import pytest
import torch

from tensorplay_core import graph as capture
from tensorplay_core.errors import CaptureError, CaptureInvalidated, UnjoinedWork
from tensorplay_torch.cuda import unwind as cuda_unwind
from tensorplay_torch.tracking.state import watching

from .cuda_seam import UNTRACKED, Graph, works_again
from .cuda_world import GPU, Stream


def test_a_block_that_raises_is_unwound_and_its_exception_is_on_top(world):
    with pytest.raises(KeyError, match="mine") as caught, capture(Graph(device=0), **UNTRACKED):
        place = len(world.log)
        raise KeyError("mine")
    assert caught.value.__cause__ is None
    # The driver beneath was asked for nothing: there is nothing of it to abort.
    assert world.since(place) == ["capture_end", "release pool", "reset"]
    assert not +world.begun
    works_again(world)


def test_a_broken_capture_gives_back_its_pool_and_frees_the_generators(world):
    with pytest.raises(KeyError) as caught, capture(Graph(device=0), **UNTRACKED):
        world.broken.add(world.current)
        raise KeyError
    assert any("ending torch's capture met RuntimeError" in n for n in caught.value.__notes__)
    assert not +world.begun
    # A capture that succeeds, after the broken one, is what frees torch's generators.
    assert world.log.index("end route") < max(
        place for place, what in enumerate(world.log) if what == "capture_end"
    )
    works_again(world)


def test_what_broke_is_said_at_the_end_of_the_block(world):
    with (
        pytest.raises(CaptureInvalidated, match="previous error") as caught,
        capture(Graph(device=0), **UNTRACKED),
    ):
        world.broken.add(world.current)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "thread_local" in caught.value.remedy
    assert not +world.begun
    works_again(world)


def test_torchs_word_for_a_broken_capture_leaves_the_block_as_an_error_of_the_tree(world):
    said = torch.AcceleratorError("CUDA error: no.\nSearch for `cudaErrorStreamCaptureUnsupported'")
    with (
        pytest.raises(CaptureInvalidated, match=f"{__file__}:") as caught,
        capture(Graph(device=0), **UNTRACKED),
    ):
        world.broken.add(world.current)
        raise said
    assert caught.value.__cause__ is said
    assert any("was discarded" in note for note in said.__notes__)
    assert not +world.begun
    works_again(world)


def test_a_fork_that_was_not_joined_is_said_to_be_that(world):
    world.end_error = "capturing stream has unjoined work"
    with pytest.raises(UnjoinedWork), capture(Graph(device=0), **UNTRACKED):
        world.broken.add(world.current)
    works_again(world)


def test_a_capture_that_cannot_begin_changes_nothing(world):
    world.refuse_begin = True
    with pytest.raises(Exception, match="out of memory") as caught:
        Graph(device=0).capture_begin()
    assert caught.value.call == "cudaStreamBeginCapture"
    works_again(world)


def test_what_fails_after_torch_has_begun_is_undone(world, monkeypatch):
    def fail(stream):
        raise RuntimeError("no look")

    with monkeypatch.context() as patch:
        patch.setattr(world.native, "gaps", fail)
        with pytest.raises(RuntimeError, match="no look"):
            Graph(device=0).capture_begin()
    assert not +world.begun
    assert not watching
    works_again(world)


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_default_streams_do_not_capture_and_are_not_remembered(world, handle):
    pool = world.runtime.pool_create(GPU)
    with pytest.raises(CaptureError, match="default stream"):
        Graph(device=0).capture_begin(pool.id, stream=Stream(handle))
    assert pool.stream is None


def test_a_second_capture_is_refused_before_anything_waits(world):
    with capture(Graph(device=0), **UNTRACKED):
        place = len(world.log)
        with pytest.raises(CaptureError, match="capturing already"):
            Graph(device=0).capture_begin(stream=Stream(77))
        with world.stream(Stream(88)), pytest.raises(CaptureError, match="another capture"):
            Graph(device=0).capture_begin(stream=Stream(77))
        assert world.since(place) == []


def test_the_users_graph_of_torch_is_not_disturbed(world):
    theirs = torch.cuda.CUDAGraph()
    with world.stream(Stream(99)):
        theirs.capture_begin()
        place = len(world.log)
        with pytest.raises(CaptureError, match="capturing already"):
            Graph(device=0).capture_begin()
        assert world.since(place) == []
        theirs.capture_end()
    theirs.reset()


def test_nothing_that_torch_failed_to_end_is_let_go(world):
    before = len(cuda_unwind._broken)
    with pytest.raises(CaptureInvalidated), capture(Graph(device=0), **UNTRACKED):
        world.broken.add(world.current)
    assert len(cuda_unwind._broken) == before + 1


@pytest.mark.parametrize("options", [{}, UNTRACKED], ids=["seen", "unseen"])
@pytest.mark.parametrize("entered", ["before", "inside"])
def test_inference_mode_that_is_not_nested_ends_a_capture(world, entered, options):
    mode = torch.inference_mode()

    def crossed():
        with capture(Graph(device=0), **options):
            mode.__enter__() if entered == "inside" else mode.__exit__(None, None, None)

    if entered == "before":
        mode.__enter__()
    with pytest.raises(CaptureError, match="inference mode"):
        crossed()
    if entered == "inside":
        assert torch.is_inference_mode_enabled()
        mode.__exit__(None, None, None)
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert (torch.ones(2) + 1).tolist() == [2.0] * 2
    assert not +world.begun
