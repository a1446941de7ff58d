"""``verify`` finds what differs from eager, and ``report`` tells whether capturing pays."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep, Report
from tensorplay_adapt.verify import ulps
from tensorplay_core.errors import ArgumentError
from tests.equality import assert_all_equal

OPTIMIZERS = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, fused=True, capturable=True),
    "damped SGD": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
}


def tensors(training):
    found = training.everything()
    return {name: one for name, one in found.items() if isinstance(one, torch.Tensor)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_good_step_verifies(twins, device, make_net, optimizer):
    pair = twins(
        OPTIMIZERS[optimizer], device=device, model=lambda: make_net(dropout=0.3), clip=0.5
    )
    for taken in (0, 2):
        pair.run(taken)
        before = {name: one.clone() for name, one in tensors(pair.ours).items()}
        random = pair.random_state()
        found = pair.step.verify(6)
        assert found.equal, str(found)
        assert str(found).endswith("equal bit for bit")
        assert found.steps == 6
        assert torch.equal(pair.random_state(), random)
        assert_all_equal(tensors(pair.ours), before)
    pair.run(3)


def test_a_step_that_differs_is_found(device):
    """A loss that takes another branch while it is captured."""
    model = nn.Linear(4, 2).to(device)
    calls = itertools.count(1)

    def loss(prediction, target):
        factor = 1.0 + 1e-6 if next(calls) == 4 else 1.0  # Three warm-ups, then the capture.
        return nn.functional.mse_loss(prediction, target) * factor

    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    step = CudaGraphAdaptationStep.capture(
        model, optim.SGD(model.parameters(), lr=0.1), x, y, loss, device=device
    )
    weights = model.weight.detach().clone()
    found = step.verify(3)
    assert not found.equal
    names = [one.name for one in found.differences]
    assert "loss 1" in names
    assert "weight" in names
    assert all(one.max_ulp > 0 and one.max_absolute > 0 for one in found.differences)
    assert "ulp" in str(found)
    assert torch.equal(model.weight, weights)


def test_arguments_of_verify(twins):
    pair = twins(OPTIMIZERS["AdamW"])
    for steps in (0, 1.5, True):
        with pytest.raises(ArgumentError):
            pair.step.verify(steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_ulps_count_the_numbers_between(dtype):
    one = torch.tensor([1.0, -1.0, 0.0, 1e-3], dtype=dtype)
    assert ulps(one, one) == 0
    assert ulps(one, -0.0 + one) == 0
    up = torch.nextafter(one.float(), torch.full_like(one.float(), 9.0)).to(dtype)
    if dtype is torch.float32:
        assert ulps(one, up) == 1
        smallest = torch.tensor([1e-45])
        assert ulps(smallest, -smallest) == 2


def test_a_report_says_what_capturing_costs_and_saves(twins, device):
    pair = twins(OPTIMIZERS["AdamW"], device=device)
    report = pair.step.report()
    assert report.capture_seconds > 0
    assert report.eager_seconds > 0
    assert report.captured_seconds > 0
    assert report.nodes > 10
    assert report.memory_bytes >= 0
    assert (report.device_seconds is None) == (device == "cpu")
    assert report.verdict in str(report)
    json.dumps(report.as_dict())
    pair.run(3)


def report(eager, captured, capture=0.1, device=None):
    return Report(
        capture_seconds=capture,
        eager_host_seconds=eager,
        captured_host_seconds=captured,
        eager_seconds=eager,
        captured_seconds=captured,
        device_seconds=device,
        memory_bytes=2**20,
        nodes=12,
    )


def test_verdicts():
    fast = report(1e-3, 1e-4)
    assert fast.speedup == pytest.approx(10)
    assert fast.break_even_steps == 112
    assert fast.verdict == "launch-bound: 10.0 × faster, ahead after 112 steps"
    slow = report(1e-3, 1e-3, device=9e-4)
    assert slow.break_even_steps is None
    assert slow.verdict == "not launch-bound (the device decides): expect about 1.0 ×"
    assert slow.as_dict()["break_even_steps"] is None


def test_a_report_draws_itself(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib, which draws, is not installed")
    for one in (report(1e-3, 1e-4), report(1e-3, 1e-3)):
        figure = one.plot(str(tmp_path / "report.png"))
        assert figure.axes
        assert (tmp_path / "report.png").stat().st_size > 1000
