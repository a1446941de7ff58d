"""A loop in one launch takes the steps that an eager loop would."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from tensorplay_core.errors import (
    ArgumentError,
    GraphStateError,
    OperationRefused,
    SignatureMismatch,
)
from tests.equality import assert_all_equal

from .optimizers import sgd


def eagerly(training, x, y, tolerance, max_steps):
    steps, loss = 1, training.step(x, y)
    while loss.item() > tolerance and steps < max_steps:
        steps, loss = steps + 1, training.step(x, y)
    return steps, loss


def check(pair, tolerance, max_steps):
    x, y = pair.batch()
    expected = eagerly(pair.eager, x, y, tolerance, max_steps)
    result = pair.step.until(x, y, tolerance=tolerance, max_steps=max_steps)
    assert result.steps.item() == expected[0]
    assert torch.equal(result.loss, expected[1])
    pair.compare()
    return expected[0]


def test_loops_equal_eager_loops(twins, optimizer, device):
    pair = twins(optimizer, device=device)
    taken = [check(pair, tolerance, 40) for tolerance in (1.2, 0.9, 0.5, 0.5, 5.0)]
    taken += [check(pair, 0.0, most) for most in (1, 7)]
    assert len(set(taken)) > 3
    assert taken[4:] == [1, 1, 7]


def test_loops_and_plain_steps_may_alternate(twins, optimizer, device):
    def change(number, made):
        made.param_groups[0]["lr"] = 0.03 / (number + 1)

    pair = twins(optimizer, device=device)
    for _ in range(3):
        pair.run(2, change=change)
        check(pair, 0.0, 3)
        for training in (pair.eager, pair.ours):
            training.optimizer.param_groups[0]["lr"] *= 0.5
        check(pair, 0.7, 9)


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 0.1},
        {"microbatches": 2},
        {"skip_nonfinite": True},
        {"scaler": {"init_scale": 64.0, "growth_interval": 3}},
        {"ema_decay": 0.9},
        {"autocast": torch.bfloat16},
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_features(twins, optimizer, device, options):
    pair = twins(optimizer, device=device, **options)
    for tolerance in (0.0, 1.0):
        check(pair, tolerance, 8)


def test_results_are_their_callers(twins, device):
    pair = twins(sgd, device=device)
    x, y = pair.batch()
    first = pair.step.until(x, y, tolerance=0.0, max_steps=3)
    values = first.steps.item(), first.loss.item()
    pair.step.until(x, y, tolerance=0.0, max_steps=5)
    assert (first.steps.item(), first.loss.item()) == values
    assert first.steps.dtype == torch.int64
    assert first.loss.shape == ()


def test_a_loss_that_is_not_a_number_ends_the_loop(twins, device, make_net):
    pair = twins(sgd, device=device, model=lambda: make_net(norm=False))
    x, y = pair.batch()
    x[0, 0] = float("nan")
    result = pair.step.until(x, y, tolerance=0.1, max_steps=9)
    assert result.steps.item() == 1
    assert result.loss.isnan()


def test_dropout_in_a_loop_is_refused_by_name(twins, device, make_net):
    pair = twins(sgd, device=device, model=lambda: make_net(dropout=0.5))
    before = {name: value.clone() for name, value in pair.ours.model.state_dict().items()}
    with pytest.raises(OperationRefused) as met:
        pair.step.until(*pair.batch(), tolerance=0.1, max_steps=3)
    assert "dropout (Dropout)" in "".join(met.value.__notes__)
    assert_all_equal(pair.ours.model.state_dict(), before)
    pair.run(2)  # A plain step is none the worse.


def test_arguments(twins, device):
    pair = twins(sgd, device=device)
    x, y = pair.batch()
    for tolerance, most in (("1", 3), (True, 3), (0.1, 0), (0.1, 2.0), (0.1, True)):
        with pytest.raises(ArgumentError):
            pair.step.until(x, y, tolerance=tolerance, max_steps=most)
    with pytest.raises(SignatureMismatch, match=r"inputs\.shape: captured \(12, 8\), got \(1, 8\)"):
        pair.step.until(x[:1], y[:1], tolerance=0.1, max_steps=3)


def test_the_undamped_first_step_is_taken_plainly(twins, device):
    pair = twins(lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3), device=device)
    with pytest.raises(GraphStateError, match="Take it by a plain call"):
        pair.step.until(*pair.batch(), tolerance=0.1, max_steps=3)
    pair.run(1)
    check(pair, 0.0, 4)


def test_evaluation_mode_may_loop(device):
    from tensorplay_adapt import CudaGraphAdaptationStep

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).to(device).eval()
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    step = CudaGraphAdaptationStep.capture(
        model, sgd(model.parameters()), x, y, nn.functional.mse_loss, device=device
    )
    result = step.until(x, y, tolerance=0.2, max_steps=500)
    assert 1 < result.steps.item() < 500
    assert result.loss.item() <= 0.2
