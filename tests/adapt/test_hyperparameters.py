"""Hyper-parameters stay live: what the groups hold at a call is what the step computes with."""

from __future__ import annotations

import importlib
import math
import random

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from tensorplay_adapt import capturing, formulas
from tensorplay_adapt.hyperparameters import values_of
from tensorplay_core.errors import StaleGraph

from .optimizers import adamw


def sgd(parameters):
    return optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


OPTIMIZERS = {"AdamW": adamw, "SGD": sgd}


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request):
    return OPTIMIZERS[request.param]


SCHEDULES = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 7, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "warm-up from zero": lambda o: lr_scheduler.LambdaLR(o, lambda n: min(n / 10, 1.0)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=60),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, 5, cycle_momentum=True),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("early", [True, False], ids=["made before", "made after the capture"])
def test_schedules_take_effect_at_the_next_call(twins, optimizer, device, name, early):
    schedules = []

    def make(parameters):
        made = optimizer(parameters)
        if early:
            schedules.append(SCHEDULES[name](made))
        return made

    pair = twins(make, device=device)
    if not early:
        schedules += [SCHEDULES[name](one.optimizer) for one in (pair.eager, pair.ours)]
    seen = set()
    for _ in range(50):
        pair.run(1)
        for schedule in schedules:
            schedule.step()
        lr = pair.ours.optimizer.param_groups[0]["lr"]
        assert type(lr) is float
        seen.add(lr)
    assert len(seen) > 5
    assert pair.step.captures == 1


def test_a_plateau_schedule_reads_the_loss(twins, device):
    pair = twins(sgd, device=device)
    plans = [
        lr_scheduler.ReduceLROnPlateau(one.optimizer, patience=1) for one in (pair.eager, pair.ours)
    ]
    for _ in range(20):
        x, y = pair.batch()
        for step, plan in zip((pair.eager.step, pair.step), plans, strict=True):
            plan.step(step(x, y).item())
    pair.compare()
    assert pair.ours.optimizer.param_groups[0]["lr"] < 0.05


def test_groups_have_rates_of_their_own(twins, optimizer, device):
    def change(number, made):
        made.param_groups[number % 2]["lr"] = 0.1 / (number + 1)

    twins(optimizer, device=device, groups=True).run(change=change)


@pytest.mark.parametrize(
    "name", ["weight_decay", "momentum", "dampening", "betas", "eps", "everything"]
)
def test_the_others_are_live_too(twins, device, name):
    def make(parameters):
        if name in ("betas", "eps", "everything"):
            return optim.AdamW(parameters, lr=0.01, eps=1e-3, fused=True, capturable=True)
        return optim.SGD(parameters, lr=0.02, momentum=0.9, dampening=0.2, weight_decay=0.1)

    def change(number, made):
        draw = random.Random(number).uniform
        group = made.param_groups[0]
        if name in ("betas", "everything"):
            group["betas"] = (draw(0.5, 0.9), draw(0.9, 0.999))
        if name in ("eps", "everything"):
            group["eps"] = draw(1e-6, 1e-2)
        if name in ("weight_decay", "everything"):
            group["weight_decay"] = draw(0.01, 0.2)
        if name in ("momentum", "dampening"):
            group[name] = draw(0.1, 0.9)

    twins(make, device=device).run(change=change)


def test_a_rate_that_begins_at_zero(twins, optimizer, device):
    def make(parameters):
        made = optimizer(parameters)
        made.param_groups[0]["lr"] = 0.0
        return made

    def change(number, made):
        made.param_groups[0]["lr"] = 0.0 if number < 3 else 0.01 * number

    pair = twins(make, device=device)
    assert pair.ours.optimizer.param_groups[0]["lr"] == 0.0
    pair.run(10, change=change)


def test_an_int_is_a_number_too(twins, device):
    def change(number, made):
        made.param_groups[0]["lr"] = 1 if number % 2 else 0.25

    def make(parameters):
        return optim.SGD(parameters, lr=1, momentum=0.5, maximize=False)

    pair = twins(make, device=device)
    pair.run(10, change=change)
    assert type(pair.ours.optimizer.param_groups[0]["lr"]) is int


def test_state_that_begins_as_the_rate_begins_as_that_of_the_first_step(twins, device):
    flags = {"capturable": True} if device == "cuda" else {}

    def change(number, made):
        made.param_groups[0]["lr"] = 0.002 if number == 0 else 0.5

    twins(lambda p: optim.Rprop(p, lr=0.05, **flags), device=device).run(10, change=change)


def test_rates_in_checkpoints_are_the_users(twins, device):
    pair = twins(adamw, device=device)
    rate = 0.1234
    pair.ours.optimizer.param_groups[0]["lr"] = rate
    pair.step(*pair.batch())
    saved = pair.ours.optimizer.state_dict()["param_groups"][0]
    assert saved["lr"] is rate
    assert saved["betas"] == (0.9, 0.999)


def refused(step, batch, words):
    with pytest.raises(StaleGraph, match=words):
        step(*batch)
    assert any(words.replace("\\", "") in line for line in step.stale)


def test_what_cannot_be_live_raises_when_changed(twins, device):
    pair = twins(lambda p: optim.SGD(p, lr=0.1, momentum=0.9), device=device)
    batch, group = pair.batch(), pair.ours.optimizer.param_groups[0]
    weights = pair.ours.model.first.weight.detach().clone()
    # From zero on the step would take other operations.
    for name, value in (("weight_decay", 0.1), ("momentum", 0.0), ("dampening", 0.5)):
        before, group[name] = group[name], value
        refused(pair.step, batch, rf"param_groups\[0\]\['{name}'\] is {value}")
        group[name] = before
    for name, value in (("nesterov", True), ("maximize", True), ("foreach", True)):
        before, group[name] = group[name], value
        refused(pair.step, batch, rf"param_groups\[0\]\['{name}'\] is {value}")
        group[name] = before
    group["lr"] = torch.tensor(0.1)
    refused(pair.step, batch, r"\['lr'\] is")
    group["lr"] = 0.1
    assert torch.equal(pair.ours.model.first.weight, weights)
    assert pair.step.stale == ()
    pair.run(5)


def test_what_is_no_number_does_not_go_unnoticed(twins, device):
    pair = twins(sgd, device=device)
    pair.ours.optimizer.param_groups[0]["lr"] = "0.1"
    refused(pair.step, pair.batch(), r"param_groups\[0\]\['lr'\] is '0.1'")


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
def test_a_rate_that_is_a_tensor_is_followed_in_place(twins, fused):
    def make(parameters):
        rate = torch.tensor(0.01, device="cuda")
        return optim.AdamW(parameters, lr=rate, fused=fused, foreach=not fused, capturable=True)

    def change(number, made):
        made.param_groups[0]["lr"].fill_(0.1 / (number + 1))

    pair = twins(make, device="cuda")
    pair.run(20, change=change)
    pair.ours.optimizer.param_groups[0]["lr"] = torch.tensor(0.01, device="cuda")
    refused(pair.step, pair.batch(), r"param_groups\[0\]\['lr'\] is another tensor")


CAPTURABLE = {
    "Adam": {"weight_decay": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adamax": {"weight_decay": 0.1},
    "NAdam": {"weight_decay": 0.1},
    "RAdam": {"weight_decay": 0.1},
    "ASGD": {"weight_decay": 0.1, "t0": 5.0},
    "Adadelta": {"weight_decay": 0.1},
    "RMSprop": {"momentum": 0.5, "centered": True, "weight_decay": 0.1},
    "Rprop": {},
}


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
@pytest.mark.parametrize("name", CAPTURABLE)
def test_the_steps_that_count_on_the_device(twins, monkeypatch, name, foreach):
    """What capturable=True computes on CUDA, recorded on the CPU, which torch does not offer."""
    module = importlib.import_module(f"torch.optim.{name.lower().removesuffix('w')}")
    monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu"])
    monkeypatch.setattr(capturing, "admit_step", lambda recipe: None)

    def make(parameters):
        options = CAPTURABLE[name]
        return getattr(optim, name)(parameters, foreach=foreach, capturable=True, **options)

    def change(number, made):
        for group in made.param_groups:
            group["lr"] = 0.05 / (number + 1) if number % 7 != 3 else 0.0

    twins(make, groups=True).run(12, change=change)


def test_muon(twins, device):
    class Matrices(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 16, bias=False)
            self.last = nn.Linear(16, 4, bias=False)

        def forward(self, x):
            return self.last(torch.relu(self.first(x)))

    def change(number, made):
        made.param_groups[0]["lr"] = 0.05 / (number + 1)

    for way in ("original", "match_rms_adamw"):
        twins(
            lambda p, way=way: optim.Muon(p, lr=0.01, adjust_lr_fn=way),
            model=Matrices,
            device=device,
        ).run(20, change=change)


KEY = (0, "lr", None)


def trial(values, *numbers):
    return values, [b"".join(formulas.DOUBLE.pack(one) for one in numbers)]


def test_a_place_is_understood_only_if_one_formula_fits_every_trial():
    known = list(formulas.formulas({KEY: 0.1}))
    trials = [
        trial({KEY: value}, -value, 1 - value, 3.0, math.sin(value)) for value in (0.1, 0.07, 0.03)
    ]
    places, unknown = formulas.explain(known, trials)
    assert [(place.offset, place.formula.of({KEY: 0.5})) for place in places] == [
        (0, -0.5),
        (8, 0.5),
    ]
    assert {offset for _, offset in unknown} <= {24, 28}
    assert unknown


def test_floats_are_rounded_as_c_does():
    value = 0.1
    trials = [
        ({KEY: one}, [bytes(4) + formulas.FLOAT.pack(one) + bytes(4)]) for one in (0.1, 0.07, 0.03)
    ]
    (place,), unknown = formulas.explain(list(formulas.formulas({KEY: value})), trials)
    assert (place.offset, place.packing) == (4, formulas.FLOAT)
    assert not unknown
    assert formulas.packed(formulas.FLOAT, 1e300) == formulas.FLOAT.pack(math.inf)


def test_numbers_of_an_optimizer():
    made = optim.Adam([nn.Parameter(torch.ones(1))], lr=1, betas=(0.5, 0.25))
    values = values_of(made)
    assert values[0, "lr", None] == 1.0
    assert values[0, "betas", 1] == 0.25
    assert not any(name in ("amsgrad", "fused") for _, name, _ in values)


def test_a_step_that_nobody_understands_keeps_its_numbers(twins, monkeypatch):
    """Were no formula known, every number would be frozen; and constant ones still be right."""
    monkeypatch.setattr("tensorplay_adapt.hyperparameters.formulas", lambda *_: ())
    pair = twins(sgd)
    pair.run(5)
    group = pair.ours.optimizer.param_groups[0]
    group["lr"] = 0.01
    refused(pair.step, pair.batch(), r"\['lr'\] is 0.01, and 0.05 is fixed in the graph")


def test_recapturing_follows_what_is_frozen(twins, monkeypatch):
    monkeypatch.setattr("tensorplay_adapt.hyperparameters.formulas", lambda *_: ())
    pair = twins(sgd, captured={"on_change": "recapture"})

    def change(number, made):
        made.param_groups[0]["lr"] = 0.05 if number < 3 else 0.01

    pair.run(6, change=change)
    assert pair.step.captures == 2


def test_a_rate_of_zero_that_is_frozen_is_captured_as_zero(twins, monkeypatch):
    monkeypatch.setattr("tensorplay_adapt.hyperparameters.formulas", lambda *_: ())

    def make(parameters):
        made = sgd(parameters)
        made.param_groups[0]["lr"] = 0.0
        return made

    pair = twins(make)
    before = pair.ours.model.first.weight.detach().clone()
    pair.run(3)
    assert torch.equal(pair.ours.model.first.weight, before)


def test_dampening_whose_first_step_cannot_be_told_apart_is_refused(twins, monkeypatch):
    monkeypatch.setattr("tensorplay_adapt.hyperparameters.formulas", lambda *_: ())
    with pytest.raises(capturing.CaptureError, match="Take one step eagerly before"):
        twins(lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5))
