"""Captured steps beside eager ones, and beside other steps of the same optimizer."""

from __future__ import annotations

import copy
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import optim

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
    "SGD dampening": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
}


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request):
    return OPTIMIZERS[request.param]


def halve(*trainings):
    for training in trainings:
        training.optimizer.param_groups[0]["lr"] /= 2


@pytest.mark.parametrize(
    ("name", "first"),
    # An undamped first step is taken by the step: see the guide.
    [(name, "captured") for name in OPTIMIZERS]
    + [(name, "eager") for name in OPTIMIZERS if name != "SGD dampening"],
)
def test_eager_steps_in_between(twins, name, first):
    pair = twins(OPTIMIZERS[name])
    for number in range(9):
        x, y = pair.batch()
        expected = pair.eager.step(x, y)
        eagerly = number % 3 == (0 if first == "eager" else 1)
        loss = pair.ours.step(x, y) if eagerly else pair.step(x, y)
        assert torch.equal(loss, expected)
        if number % 2 == 0:
            halve(pair.eager, pair.ours)
    pair.compare()


def test_a_rate_that_changes_before_the_first_step(twins, optimizer):
    pair = twins(optimizer)
    halve(pair.eager, pair.ours)
    pair.run(5)


def test_state_that_is_put_in_before_the_first_step(twins, optimizer):
    pair = twins(optimizer)
    for _ in range(3):
        pair.eager.step(*pair.batch())
    pair.ours.model.load_state_dict(pair.eager.model.state_dict())
    pairs = zip(pair.ours.model.parameters(), pair.eager.model.parameters(), strict=True)
    with torch.no_grad():
        for one, other in pairs:
            for key, value in pair.eager.optimizer.state[other].items():
                pair.ours.optimizer.state[one][key].copy_(value)
    halve(pair.eager, pair.ours)
    pair.run(4)


def test_two_steps_of_one_optimizer(twins, optimizer):
    pair = twins(optimizer)
    other = pair.ours.capture(*(one[:6] for one in pair.batch()))
    for number in range(8):
        x, y = pair.batch()
        if number % 2 == 0:
            x, y = x[:6], y[:6]
        step = pair.step if number % 2 else other
        assert torch.equal(step(x, y), pair.eager.step(x, y))
    pair.compare()


def test_capturing_anew_before_the_first_step(twins, optimizer):
    pair = twins(optimizer, captured={"on_change": "recapture"})
    for training in (pair.eager, pair.ours):
        training.model.norm.eps = 1e-3
    pair.run(4)
    assert pair.step.captures == 2


def test_going_on_from_a_checkpoint(twins, optimizer):
    pair = twins(optimizer, captured={"on_change": "recapture"})
    pair.run(4)
    saved = [
        copy.deepcopy((one.model.state_dict(), one.optimizer.state_dict()))
        for one in (pair.eager, pair.ours)
    ]
    pair.run(3)
    for training, (model, state) in zip((pair.eager, pair.ours), saved, strict=True):
        training.model.load_state_dict(model)
        training.optimizer.load_state_dict(state)
    pair.run(4)
    assert pair.step.captures == 2


def test_a_capture_in_the_callers_autocast(twins):
    pair = twins(OPTIMIZERS["SGD"])
    with torch.autocast("cpu", torch.bfloat16):
        step = pair.ours.capture(*pair.batch())
    for _ in range(4):
        x, y = pair.batch()
        with torch.autocast("cpu", torch.bfloat16):
            expected = pair.eager.step(x, y)
            loss = step(x, y)
        assert torch.equal(loss, expected)
    pair.compare()


@pytest.mark.parametrize("options", [{"skip_nonfinite": True}, {"scaler": {"init_scale": 8.0}}])
def test_a_first_step_that_is_skipped(twins, make_net, optimizer, options):
    pair = twins(optimizer, model=lambda: make_net(norm=False), **options)

    def spoil(number, x):
        if number in (0, 1, 4):
            x[0, 0] = float("inf")

    def change(number, made):
        made.param_groups[0]["lr"] = 0.01 * (number + 1)

    pair.run(8, spoil=spoil, change=change)


@pytest.mark.parametrize("stream", ["current", "made current"])
def test_threads_that_never_used_the_device_step(twins, device, stream):
    """CUDA ends a process whose thread sets a kernel before it has a context."""
    pair, found = twins(OPTIMIZERS["SGD"], device=device), []
    pair.run(2)
    side = torch.cuda.Stream() if device == "cuda" and stream == "made current" else None
    for _ in range(3):
        x, y = pair.batch()
        expected = pair.eager.step(x, y)
        if device == "cuda":
            torch.cuda.synchronize()

        def work(x=x, y=y):
            with nullcontext() if side is None else torch.cuda.stream(side):
                found.append(pair.step(x, y))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if device == "cuda":
            torch.cuda.synchronize()
        assert torch.equal(found[-1], expected)
        halve(pair.eager, pair.ours)
    pair.compare()
