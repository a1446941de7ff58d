"""Every entry of an optimizer's groups that a step reads is live, or refused when it changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn, optim

from tensorplay_core.errors import OperationRefused, StaleGraph

from .optimizers import adamw, changing, sgd


class Own(optim.Optimizer):
    """Somebody's own: reads its groups in every way."""

    def __init__(self, parameters, **settings):
        defaults = {"lr": 0.05, "scale": 2.0, "threshold": 0.01, "decay": 0.1, "unread": 1.0}
        super().__init__(parameters, {**defaults, "repeats": 2, "parts": [1.0, 2.0]} | settings)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            share = torch.tensor(1 - 0.5 * group["decay"])
            sign = -1 if group.get("uphill") else 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                small = parameter.grad.abs() < group["threshold"]
                step = torch.where(small, parameter.grad * group["scale"], parameter.grad)
                for _ in range(group["repeats"]):
                    parameter.add_(step, alpha=-group["lr"] * sign)
                parameter.mul_(share).sub_(parameter * group["decay"])
                parameter.add_(sum(group["parts"]), alpha=1e-3)


def rprop(parameters):
    return optim.Rprop(parameters, lr=0.01)


@pytest.mark.parametrize(
    ("optimizer", "name", "value"),
    [
        (rprop, "etas", (0.4, 1.3)),
        (Own, "repeats", 3),
        (Own, "decay", 0.2),  # One of its places is in a tensor made from it.
        (Own, "parts", [1.0, 3.0]),
        (Own, "uphill", True),
    ],
)
def test_a_number_that_is_not_found_in_the_graph_is_fixed(twins, optimizer, name, value):
    pair = twins(optimizer)
    pair.run(2)
    pair.ours.optimizer.param_groups[0][name] = value
    with pytest.raises(StaleGraph, match=rf"param_groups\[0\]\['{name}'\]"):
        pair.step(*pair.batch())
    with pytest.raises(StaleGraph, match=name):
        pair.step.until(*pair.batch(), tolerance=0.1, max_steps=2)


@pytest.mark.parametrize(
    ("optimizer", "name", "value"),
    [
        (rprop, "step_sizes", (1e-5, 0.02)),
        (rprop, "lr", 0.5),
        (Own, "scale", 0.5),
        (Own, "lr", 0.02),
        (Own, "threshold", 0.5),
        (Own, "unread", 0.5),
        (Own, "initial_lr", 0.5),
        (adamw, "note", ["anything"]),
    ],
)
def test_what_is_found_or_not_read_may_change(twins, optimizer, name, value):
    twins(optimizer).run(5, change=changing(name, value))


@pytest.mark.parametrize("optimizer", [rprop, Own])
def test_what_is_fixed_is_captured_anew_when_asked(twins, optimizer):
    pair = twins(optimizer, captured={"on_change": "recapture"})
    name, value = ("etas", (0.4, 1.3)) if optimizer is rprop else ("decay", 0.3)
    pair.run(5, change=changing(name, value))
    assert pair.step.captures == 2


def test_a_list_that_is_written_into_is_noticed(twins):
    def make(parameters):
        made = adamw(parameters)
        made.param_groups[0]["betas"] = [0.9, 0.99]
        return made

    def change(number, made):
        made.param_groups[0]["betas"][0] = 0.9 - number / 100

    twins(make).run(5, change=change)
    pair = twins(Own)
    pair.run(2)
    pair.ours.optimizer.param_groups[0]["parts"][1] = 7.0
    with pytest.raises(StaleGraph, match="parts"):
        pair.step(*pair.batch())


def shorten(made):
    made.param_groups[0]["params"] = made.param_groups[0]["params"][:2]


def exchange(made):
    made.param_groups[0]["params"][0] = nn.Parameter(torch.ones(16, 8))


def swap(made):
    parameters = made.param_groups[0]["params"]
    parameters[0], parameters[1] = parameters[1], parameters[0]


def pop(made):
    made.param_groups[0]["params"].pop()


def forget(made):
    made.state.clear()


def append(made):
    made.param_groups.append({**made.param_groups[0], "params": [nn.Parameter(torch.ones(2))]})


CHANGES = {
    shorten: r"param_groups\[0\] has 2 parameters, had 8",
    exchange: r"param_groups\[0\]\['params'\] has other parameters",
    swap: r"param_groups\[0\]\['params'\] has other parameters",
    pop: r"param_groups\[0\] has 7 parameters, had 8",
    forget: r"entries of optimizer\.state were removed",
    append: r"optimizer has 2 parameter groups, had 1",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_other_parameters_or_state_are_named(twins, change):
    pair = twins(adamw, model=lambda: nn.Sequential(*map(wide, range(4))))
    pair.run(2)
    change(pair.ours.optimizer)
    with pytest.raises(StaleGraph, match=CHANGES[change]):
        pair.step(*pair.batch())


def wide(number):
    return nn.Linear(8 if number == 0 else 16, 16)


def test_a_rate_in_a_tensor_that_moved_is_named(twins):
    pair = twins(lambda p: optim.SGD(p, lr=torch.tensor(0.05), fused=True))
    pair.run(2)
    pair.ours.optimizer.param_groups[0]["lr"].data = torch.tensor(0.1)
    with pytest.raises(StaleGraph, match=r"param_groups\[0\]\['lr'\] moved"):
        pair.step(*pair.batch())


class Decaying:
    """A transform that reads the groups of the optimizer."""

    def __init__(self, held):
        self.held = held

    def __call__(self):
        group = self.held.param_groups[0] if hasattr(self.held, "param_groups") else self.held
        for parameter in group["params"]:
            parameter.grad.add_(parameter.detach(), alpha=group["lr"] * group["coupled"])


@pytest.mark.parametrize("held", ["optimizer", "group"])
@pytest.mark.parametrize("name", ["lr", "coupled"])
def test_what_a_transform_reads_is_fixed(captured_with, held, name):
    def transform(optimizer):
        optimizer.param_groups[0]["coupled"] = 0.1
        if held == "optimizer":
            return Decaying(optimizer)
        group = optimizer.param_groups[0]
        return lambda: Decaying(group)()

    step, optimizer, batch = captured_with(transform)
    step(*batch)
    if held == "optimizer":
        optimizer.param_groups[0]["momentum"] = 0.8  # The update's alone, and live.
        step(*batch)
    optimizer.param_groups[0][name] = 0.03
    with pytest.raises(StaleGraph, match=rf"param_groups\[0\]\['{name}'\] is 0.03"):
        step(*batch)


@pytest.mark.parametrize("held", ["method", "closure"])
@pytest.mark.parametrize("rate", ["float", "tensor"])
def test_a_schedule_that_steps_inside_the_step_is_refused(captured_with, rate, held):
    schedules = []

    def transform(optimizer):
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.step()
        schedules.append(schedule)
        return schedule.step if held == "method" else lambda: schedule.step()

    with pytest.raises(OperationRefused, match=r"param_groups\[0\]\['lr'\]") as met:
        captured_with(transform, lr=torch.tensor(0.05) if rate == "tensor" else 0.05)
    assert "after step(inputs, targets)" in str(met.value)
    assert schedules[0].last_epoch == 0


class Counting(Own):
    """Counts its steps in Python."""

    def __init__(self, parameters, where):
        super().__init__(parameters)
        self.where, self.steps = where, 0
        self.param_groups[0]["count"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        if self.where == "attribute":
            self.steps += 1
        else:
            self.param_groups[0]["count"] += 1


@pytest.mark.parametrize("where", ["attribute", "group"])
def test_an_optimizer_that_counts_in_python_is_refused(twins, where):
    made = []

    def make(parameters):
        made.append(Counting(parameters, where))
        return made[-1]

    words = r"it sets optimizer\.steps" if where == "attribute" else r"param_groups\[0\]\['count'\]"
    with pytest.raises(OperationRefused, match=words):
        twins(make)
    assert [one.steps + one.param_groups[0]["count"] for one in made] == [0, 0]


class Remembering:
    """A loss that keeps what it saw."""

    def __init__(self):
        self.seen = []

    def __call__(self, prediction, target):
        self.seen.append(1)
        return nn.functional.cross_entropy(prediction, target)


def test_a_loss_that_sets_attributes_is_refused(twins, monkeypatch):
    loss = Remembering()
    pair = twins(sgd)
    monkeypatch.setattr(pair.ours, "loss", loss)
    with pytest.raises(OperationRefused, match=r"it sets loss_function\.Remembering\.seen"):
        pair.ours.capture(*pair.batch())
    assert loss.seen == []


@pytest.fixture
def captured_with(make_net):
    """Captures a step whose transform is made of the optimizer."""

    def capture(transform, lr=0.05):
        from tensorplay_adapt import CudaGraphAdaptationStep

        torch.manual_seed(0)
        model = make_net()
        fused = isinstance(lr, torch.Tensor)
        optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=fused)
        before = copy.deepcopy(optimizer.param_groups[0]["lr"])
        batch = torch.randn(12, 8), torch.randint(4, (12,))
        try:
            step = CudaGraphAdaptationStep.capture(
                model,
                optimizer,
                *batch,
                nn.functional.cross_entropy,
                gradient_transform=transform(optimizer),
                device="cpu",
            )
        finally:
            assert optimizer.param_groups[0]["lr"] == before
        return step, optimizer, batch

    return capture
