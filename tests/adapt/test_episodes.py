"""Snapshots: back in one launch to model, optimizer, scaler and average as they were."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import optim

from tensorplay_core.errors import GraphStateError, SignatureMismatch, StaleGraph
from tests.equality import assert_all_equal

from .optimizers import adamw, sgd

OPTIMIZERS = {
    "AdamW": adamw,
    "SGD": sgd,
    "damped SGD": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
}


def everything(training):
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in training.everything().items()
    }


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 3])
def test_episodes_begin_alike(twins, device, optimizer, steps):
    pair = twins(OPTIMIZERS[optimizer], device=device, ema_decay=0.9)
    pair.run(steps)
    begun, snapshot = everything(pair.ours), pair.step.snapshot()
    batches = [pair.batch() for _ in range(4)]
    first = [pair.step(*batch) for batch in batches]
    ended = everything(pair.ours)
    assert not same(begun, ended)
    for _ in range(2):
        pair.step.reset_to(snapshot)
        assert same(begun, everything(pair.ours))
        again = [pair.step(*batch) for batch in batches]
        assert_all_equal(again, first)
        assert same(ended, everything(pair.ours))
    assert pair.step.stale == ()


def test_snapshots_of_different_times(twins, device):
    pair = twins(adamw, device=device, scaler={"init_scale": 8.0, "growth_interval": 2})
    taken = []
    for _ in range(3):
        pair.run(2)
        taken.append((pair.step.snapshot(), everything(pair.ours)))
    for snapshot, state in (taken[0], taken[2], taken[1], taken[0]):
        pair.step.reset_to(snapshot)
        assert same(state, everything(pair.ours))


def test_a_snapshot_stays_what_it_is_and_outlives_a_recapture(twins, device):
    pair = twins(adamw, device=device, captured={"on_change": "recapture"})
    pair.run(2)
    snapshot, state = pair.step.snapshot(), everything(pair.ours)
    x, y = pair.batch()
    pair.step(x[:5], y[:5])
    assert pair.step.captures == 2
    pair.step.reset_to(snapshot)
    assert same(state, everything(pair.ours))
    assert "tensors" in repr(snapshot)


def test_a_snapshot_of_something_else_is_refused(twins, device, make_net):
    pair = twins(adamw, device=device)
    other = twins(adamw, device=device, model=lambda: make_net(norm=False))
    state = everything(pair.ours)
    with pytest.raises(SignatureMismatch, match=r"norm\.weight: not in the snapshot"):
        pair.step.reset_to(other.step.snapshot())
    assert same(state, everything(pair.ours))


def test_what_the_groups_hold_stays(twins, device):
    pair = twins(adamw, device=device)
    snapshot = pair.step.snapshot()
    pair.ours.optimizer.param_groups[0]["lr"] = 0.5
    pair.step.reset_to(snapshot)
    assert pair.ours.optimizer.param_groups[0]["lr"] == 0.5


def test_a_call_in_the_midst_of_another_changes_nothing(twins, device):
    """The numbers of a graph that is about to be launched must not be rewritten by then."""
    pair = twins(adamw, device=device)
    x, y = pair.batch()
    pair.step(x, y)
    snapshot = pair.step.snapshot()
    runner = pair.step._runner
    pair.ours.optimizer.param_groups[0]["lr"] = 0.25
    before = everything(pair.ours)
    seen = runner._groups.unchanged()
    with runner.lane.entered("the step"):
        for call in (
            lambda: pair.step(x, y),
            lambda: pair.step.until(x, y, tolerance=0.0, max_steps=2),
            lambda: pair.step.reset_to(snapshot),
            pair.step.snapshot,
        ):
            with pytest.raises(GraphStateError, match="midst"):
                call()
    assert (seen, runner._groups.unchanged()) == (False, False)
    assert same(before, everything(pair.ours))
    pair.step(x, y)
    assert runner._groups.unchanged()


def loaded(training):
    state = copy.deepcopy(training.optimizer.state_dict())
    for one in state["state"].values():
        one["exp_avg"].fill_(7.0)
    training.optimizer.load_state_dict(state)


def assigned(training):
    state = {name: torch.full_like(one, 0.5) for name, one in training.model.state_dict().items()}
    training.model.load_state_dict(state, assign=True)
    training.optimizer.param_groups[0]["params"][:] = list(training.model.parameters())
    training.optimizer.state.clear()


@pytest.mark.parametrize("change", [loaded, assigned])
def test_a_snapshot_is_of_what_there_is_now(twins, device, change):
    pair = twins(adamw, device=device, captured={"on_change": "recapture"})
    pair.run(2)
    change(pair.ours)
    snapshot, now = pair.step.snapshot(), everything(pair.ours)
    pair.step(*pair.batch())
    pair.step.reset_to(snapshot)
    assert same(now, everything(pair.ours))


def test_of_a_step_that_does_not_fit_there_is_no_snapshot(twins, device):
    pair = twins(adamw, device=device)
    pair.run(2)
    snapshot = pair.step.snapshot()
    loaded(pair.ours)
    for refused in (pair.step.snapshot, lambda: pair.step.reset_to(snapshot)):
        with pytest.raises(StaleGraph, match="state was replaced"):
            refused()


def test_a_reset_that_was_broken_off_stays_so_until_one_succeeds(twins, device, monkeypatch):
    pair = twins(OPTIMIZERS["damped SGD"], device=device)
    begun = pair.step.snapshot()
    pair.run(2)

    def interrupted(saved):
        raise KeyboardInterrupt

    pair.step.reset_to(begun)  # Makes what fills the state.
    pair.step(*pair.batch())
    with monkeypatch.context() as patch:
        patch.setattr(pair.step._runner._episodes, "fill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.step.reset_to(begun)
    weight = next(iter(pair.ours.model.parameters()))
    weight.requires_grad_(False)
    with pytest.raises(StaleGraph):
        pair.step.reset_to(begun)
    weight.requires_grad_(True)
    assert pair.step.stale == ("a reset was broken off",)
    with pytest.raises(GraphStateError, match="reset"):
        pair.step(*pair.batch())
    pair.step.reset_to(begun)
    assert pair.step.stale == ()
    pair.step(*pair.batch())
