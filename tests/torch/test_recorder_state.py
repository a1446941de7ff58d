"""What captured code binds in Python: refused where a replay would not bind it again, put back."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn, optim

from tensorplay_core import OperationRefused
from tensorplay_core.protocols import CaptureOptions
from tensorplay_torch.tracking.dispatch import CaptureDispatch
from tensorplay_torch.tracking.operands import DeviceListener

FRESH = {
    "SGD": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), "momentum_buffer"),
    "AdamW": (lambda p: optim.AdamW(p, fused=True), "step"),
    "RMSprop": (lambda p: optim.RMSprop(p), "step"),
    "Rprop": (lambda p: optim.Rprop(p), "step"),
    "Adadelta": (lambda p: optim.Adadelta(p), "step"),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.x = torch.randn(4, 3)

    def forward(self) -> torch.Tensor:
        return self.inner(self.x).square().sum()


class Stepping:
    def __init__(self, optimizer) -> None:
        self.model = Model()
        self.optimizer = optimizer(self.model.parameters())

    def __call__(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model()
        loss.backward()
        self.optimizer.step()
        return loss


@pytest.mark.parametrize("name", FRESH)
def test_state_born_in_a_capture_is_refused(record, name):
    optimizer, key = FRESH[name]
    step = Stepping(optimizer)
    with pytest.raises(OperationRefused) as refusal:
        record(step)
    error = refusal.value
    assert error.operation == f"{name}.step"
    assert repr(key) in error.met
    assert "param_groups[0]['params'][0] of shape (2, 3)" in error.met
    assert "Warm up" in error.remedy
    assert error.where.startswith(f"{__file__}:")
    assert not step.optimizer.state
    assert all(parameter.grad is None for parameter in step.model.parameters())
    step()
    record(step).replay()


class Counts(optim.Optimizer):
    """Counts steps in a Python number, as many optimizers outside torch do."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 0.1, "betas": (0.5, 0.5), "done": [0]})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                parameter.sub_(parameter.grad, alpha=group["lr"] / state["count"])


def test_numbers_that_a_step_changes_are_refused(record):
    step = Stepping(Counts)
    step()
    with pytest.raises(OperationRefused, match=r"'count'.* changed from 1 to 2"):
        record(step)
    assert [state["count"] for state in step.optimizer.state.values()] == [1, 1]


@pytest.mark.parametrize("change", ["schedule", "group", "nested", "rebound", "new", "added"])
def test_settings_changed_inside_a_capture_are_refused(record, change):
    step = Stepping(lambda p: optim.SGD(p, lr=0.1, momentum=0.9))
    step()
    group = step.optimizer.param_groups[0]
    group["done"] = [0]
    schedule = optim.lr_scheduler.StepLR(step.optimizer, 1, 0.5)
    buffers = [state["momentum_buffer"] for state in step.optimizer.state.values()]

    def body():
        step()
        match change:
            case "schedule":
                schedule.step()
            case "group":
                group["weight_decay"] = 0.5
            case "nested":
                group["done"][0] += 1
            case "rebound":
                state = next(iter(step.optimizer.state.values()))
                state["momentum_buffer"] = buffers[1]
            case "new":
                group["extra"] = 3
            case "added":
                step.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})

    with pytest.raises(OperationRefused, match=r"SGD\.step"):
        record(body)
    assert len(step.optimizer.param_groups) == 1
    assert group["lr"] == 0.1
    assert group["weight_decay"] == 0
    assert group["done"] == [0]
    assert "extra" not in group
    now = [state["momentum_buffer"] for state in step.optimizer.state.values()]
    assert all(one is other for one, other in zip(now, buffers, strict=True))


def in_a_tensor(parameters):
    return optim.Adam(parameters, lr=torch.tensor(0.1), fused=True, capturable=True)


@pytest.mark.parametrize("change", [lambda rate: rate * 0.5, lambda rate: torch.tensor(0.5)])
@pytest.mark.parametrize("early", [False, True], ids=["after the step", "before the step"])
def test_a_rate_that_is_bound_anew_is_refused(record, change, early):
    step = Stepping(in_a_tensor)
    step()
    group = step.optimizer.param_groups[0]

    def body():
        if early:
            group["lr"] = change(group["lr"])
        step()
        group["lr"] = change(group["lr"])

    with pytest.raises(OperationRefused, match=r"'lr' for param_groups\[0\]") as refusal:
        record(body)
    assert "write into that tensor" in refusal.value.remedy


SCHEDULES = {
    "StepLR": lambda o: optim.lr_scheduler.StepLR(o, 1, 0.5),
    "CosineAnnealingLR": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "OneCycleLR": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "SWALR": lambda o: optim.swa_utils.SWALR(o, 0.05),
    "SequentialLR": lambda o: optim.lr_scheduler.SequentialLR(
        o,
        [optim.lr_scheduler.ConstantLR(o), optim.lr_scheduler.ExponentialLR(o, 0.5)],
        [2],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("alone", [False, True], ids=["with its optimizer", "alone"])
def test_schedules_that_write_a_tensor_are_refused(record, name, alone):
    step = Stepping(in_a_tensor)
    schedule = SCHEDULES[name](step.optimizer)
    step()
    rate = step.optimizer.param_groups[0]["lr"]
    before = rate.item()

    def body():
        if not alone:
            step()
        schedule.step()

    with pytest.raises(OperationRefused, match="Step the schedule between replays") as refusal:
        record(body)
    assert refusal.value.where.startswith(f"{__file__}:")
    assert step.optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == before


def test_a_schedule_that_steps_between_replays_is_followed(record):
    step, eager = Stepping(in_a_tensor), Stepping(in_a_tensor)
    eager.model.load_state_dict(step.model.state_dict())
    eager.model.x = step.model.x
    for one in (step, eager):
        one()
    ours, theirs = (optim.lr_scheduler.ExponentialLR(one.optimizer, 0.5) for one in (step, eager))
    captured = record(step)
    for _ in range(3):
        captured.replay()
        eager()
        ours.step()
        theirs.step()
        assert torch.equal(step.model.inner.weight, eager.model.inner.weight)


def test_a_schedule_that_reads_a_loss_is_refused_with_what_helps(record):
    step = Stepping(lambda p: optim.SGD(p, lr=0.1))
    schedule = optim.lr_scheduler.ReduceLROnPlateau(step.optimizer)
    with pytest.raises(OperationRefused, match="Step the schedule between replays"):
        record(lambda: schedule.step(step()))


def test_optimizers_of_other_threads_are_not_looked_at(record):
    step, other = Stepping(FRESH["SGD"][0]), Stepping(FRESH["SGD"][0])
    step()

    def body():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return step()

    record(body).replay()
    assert other.optimizer.state


def test_a_failed_capture_puts_gradients_back(record):
    model = Model()
    kept = torch.ones(2, 3)
    model.inner.weight.grad = kept

    def body():
        model.zero_grad()
        model().backward()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(body)
    assert model.inner.weight.grad is kept
    assert (kept == 1).all()
    assert model.inner.bias.grad is None


def test_a_capture_leaves_gradients_bound_to_its_memory(record):
    model = Model()

    def body():
        model.zero_grad()
        model().backward()

    captured = record(body)
    bound = model.inner.weight.grad
    assert bound.isnan().all()
    captured.replay()
    assert model.inner.weight.grad is bound
    (expected,) = torch.autograd.grad(model(), model.inner.weight)
    assert torch.equal(bound, expected)


def test_the_same_holds_where_captured_work_runs():
    """On a device that computes nothing, in the place of one that does."""
    with torch.device("meta"):
        step = Stepping(FRESH["SGD"][0])
    listener = DeviceListener("meta", CaptureOptions())
    dispatch = CaptureDispatch([listener])
    listener.bindings.start()
    dispatch.start()
    step()
    dispatch.stop()
    listener.bindings.stop()
    with pytest.raises(OperationRefused, match="'momentum_buffer'"):
        listener.bindings.check()
    listener.bindings.restore()
    assert not step.optimizer.state
    assert all(parameter.grad is None for parameter in step.model.parameters())
