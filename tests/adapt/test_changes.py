"""What changes after a capture is noticed at the next call: named, or captured anew."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

from tensorplay_core.errors import SignatureMismatch, StaleGraph

from .optimizers import adamw, sgd


def load_optimizer(training):
    training.optimizer.load_state_dict(copy.deepcopy(training.optimizer.state_dict()))


def replace_state(training):
    state = training.optimizer.state[training.model.last.weight]
    state["exp_avg"] = state["exp_avg"].clone()


def replace_entry(training):
    state = training.optimizer.state
    state[training.model.last.weight] = dict(state[training.model.last.weight])


def add_group(training):
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def assign_state(training):
    training.model.load_state_dict(copy.deepcopy(training.model.state_dict()), assign=True)


def move_parameter(training):
    training.model.last.bias.data = training.model.last.bias.data.clone()


def move_buffer(training):
    training.model.norm.running_mean.data = training.model.norm.running_mean.data.clone()


def replace_parameter(training):
    training.model.last.bias = nn.Parameter(training.model.last.bias.detach().clone())


def replace_buffer(training):
    training.model.norm.running_var = training.model.norm.running_var.clone()


def replace_module(training):
    training.model.last = nn.Linear(16, 4).to(training.device)


def freeze(training):
    training.model.last.requires_grad_(False)


def evaluate(training):
    training.model.eval()


def evaluate_a_part(training):
    training.model.norm.eval()


CHANGES = {
    load_optimizer: r"optimizer\.state was replaced",
    replace_state: r"optimizer\.state\[last\.weight\]\['exp_avg'\] was replaced",
    replace_entry: r"an entry of optimizer\.state was replaced",
    add_group: r"optimizer has 2 parameter groups, had 1",
    assign_state: r"last\._parameters\['weight'\] was replaced",
    move_parameter: r"last\.bias moved to other memory",
    move_buffer: r"norm\.running_mean moved to other memory",
    replace_parameter: r"last\._parameters\['bias'\] was replaced",
    replace_buffer: r"norm\._buffers\['running_var'\] was replaced",
    replace_module: r"the module\._modules\['last'\] was replaced",
    freeze: r"last\.weight\.requires_grad is False, was True",
    evaluate: r"norm\.training is False, was True",
    evaluate_a_part: r"norm\.training is False, was True",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_change_is_named(twins, device, change):
    pair = twins(adamw, device=device)
    pair.run(3)
    assert pair.step.stale == ()
    weights = pair.ours.model.first.weight.detach().clone()
    batch = pair.batch()
    change(pair.ours)
    with pytest.raises(StaleGraph, match=CHANGES[change]):
        pair.step(*batch)
    with pytest.raises(StaleGraph, match=CHANGES[change]):
        pair.step.until(*batch, tolerance=0.1, max_steps=2)
    with pytest.raises(StaleGraph, match=CHANGES[change]):
        pair.step.verify(1)
    assert pair.step.stale
    assert torch.equal(pair.ours.model.first.weight, weights)


@pytest.mark.parametrize(
    "change",
    [
        one
        for one in CHANGES
        if one not in (add_group, assign_state, replace_parameter, replace_module)
    ],
    ids=lambda change: change.__name__,
)
def test_a_step_may_capture_itself_again(twins, device, change):
    pair = twins(adamw, device=device, captured={"on_change": "recapture"})
    pair.run(3)
    before = pair.step.graph
    for training in (pair.eager, pair.ours):
        change(training)
    pair.run(3)
    assert pair.step.captures == 2
    assert pair.step.graph is not before
    assert pair.step.stale == ()


def test_a_capture_for_parameters_that_the_optimizer_lost_says_so(twins, device):
    pair = twins(adamw, device=device, captured={"on_change": "recapture"})
    pair.run(3)
    assign_state(pair.ours)  # The optimizer goes on with the old parameters.
    with pytest.warns(RuntimeWarning, match="no step will change them"):
        pair.step(*pair.batch())


def test_a_late_unfrozen_parameter(twins, device, make_net):
    pair = twins(adamw, device=device, model=lambda: make_net(frozen=True))
    pair.run(3)
    pair.ours.model.first.requires_grad_(True)
    with pytest.raises(StaleGraph, match=r"first\.weight\.requires_grad is True, was False"):
        pair.step(*pair.batch())


def test_a_late_unfrozen_parameter_is_captured(twins, device, make_net):
    pair = twins(
        adamw,
        device=device,
        model=lambda: make_net(frozen=True),
        captured={"on_change": "recapture"},
    )
    pair.run(3)
    for training in (pair.eager, pair.ours):
        training.model.first.requires_grad_(True)
    pair.run(3)


def test_other_shapes_capture_anew_when_asked(twins, device):
    pair = twins(sgd, device=device, captured={"on_change": "recapture"})
    x, y = pair.batch()
    for rows in (12, 5, 5, 12):
        assert torch.equal(pair.step(x[:rows], y[:rows]), pair.eager.step(x[:rows], y[:rows]))
    pair.compare()
    assert pair.step.captures == 3
    assert pair.step.static_inputs.shape == (12, 8)


def test_there_and_back_is_no_change(twins, device):
    pair = twins(sgd, device=device)
    pair.ours.model.eval()
    assert pair.step.stale
    pair.ours.model(pair.batch()[0])
    pair.ours.model.train()
    assert pair.step.stale == ()
    pair.run(3)


def test_what_does_not_matter_is_no_change(twins, device):
    pair = twins(adamw, device=device)
    pair.run(2)
    pair.ours.optimizer.state_dict()
    pair.ours.optimizer.state[nn.Parameter(torch.ones(1))]
    pair.ours.model.zero_grad()
    pair.ours.model.note = "an attribute"
    pair.ours.model.load_state_dict(pair.ours.model.state_dict())
    for one in pair.ours.model.parameters():
        one.grad = torch.ones_like(one)
    with torch.no_grad():
        pair.step(*pair.batch())
    assert pair.step.captures == 1


def test_values_may_change_in_place(twins, device):
    pair = twins(sgd, device=device)
    pair.run(2)
    with torch.no_grad():
        for training in (pair.eager, pair.ours):
            training.model.last.weight.mul_(0.5)
            training.optimizer.state[training.model.last.weight]["momentum_buffer"].zero_()
    pair.run(3)


def test_autocast_around_the_call_is_a_change(twins, device):
    pair = twins(sgd, device=device)
    with torch.autocast(device, torch.bfloat16), pytest.raises(StaleGraph, match="autocast on"):
        pair.step(*pair.batch())
    pair.run(2)


def test_the_scalers_settings_are_watched(twins, device):
    pair = twins(adamw, device=device, scaler={"init_scale": 4.0})
    pair.run(2)
    pair.ours.scaler.set_growth_factor(3.0)
    with pytest.raises(StaleGraph, match=r"scaler\._growth_factor"):
        pair.step(*pair.batch())
    pair.ours.scaler.set_growth_factor(2.0)
    for training in (pair.eager, pair.ours):
        training.scaler.load_state_dict(training.scaler.state_dict() | {"scale": 8.0})
    pair.run(2)


def test_recapturing_that_fails_leaves_the_step_as_it_was(twins, device):
    pair = twins(sgd, device=device, captured={"on_change": "recapture"})
    pair.run(2)
    weights = pair.ours.model.first.weight.detach().clone()
    with pytest.raises(Exception, match=r"shape|size|mat1"):
        pair.step(torch.ones(12, 9, device=device), pair.batch()[1])
    assert torch.equal(pair.ours.model.first.weight, weights)
    pair.run(2)
    assert pair.step.captures == 1


def test_a_mismatch_is_no_change(twins, device):
    pair = twins(sgd, device=device)
    x, y = pair.batch()
    for _ in range(2):
        with pytest.raises(SignatureMismatch):
            pair.step(x[:1], y[:1])
    pair.run(2)


def test_memory_goes_back_with_the_step(twins, device):
    import weakref

    pair = twins(sgd, device=device, captured={"on_change": "recapture"})
    pair.run(1)
    graphs = weakref.ref(pair.step.graph)
    step = weakref.ref(pair.step)
    pair.step = None
    gc.collect()
    assert step() is None
    assert graphs() is None
