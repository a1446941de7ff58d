"""Any small training, changed and broken at random, equals eager or is refused without a trace."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_adapt.optimizers import takes_fused_steps
from tests.equality import assert_all_equal

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
few = settings(
    max_examples=settings.default.max_examples // 4,  # Each is six captures and thirty steps.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[phase for phase in Phase if phase is not Phase.shrink],  # It would take minutes.
)


def rates(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


OPTIMIZERS = {
    "SGD": {
        "lr": rates(1e-3, 0.1),
        "momentum": st.sampled_from([0.0, 0.5, 0.9]),
        "dampening": st.sampled_from([0.0, 0.3]),
        "weight_decay": st.sampled_from([0.0, 0.01]),
        "maximize": st.booleans(),
        "foreach": st.booleans(),
    },
    "AdamW": {
        "lr": rates(1e-4, 0.05),
        "betas": st.tuples(rates(0.5, 0.9), rates(0.9, 0.999)),
        "amsgrad": st.booleans(),
        "fused": st.just(True),
        "capturable": st.just(True),
    },
    "Adagrad": {"lr": rates(1e-3, 0.1), "fused": st.just(True)},
}


@st.composite
def optimizers(draw, device):
    names = set(OPTIMIZERS)
    if device == "cuda" and not takes_fused_steps("Adagrad", torch.device("cuda")):
        names.remove("Adagrad")
    name = draw(st.sampled_from(sorted(names)))
    options = {key: draw(values) for key, values in OPTIMIZERS[name].items()}
    return name, options


@st.composite
def models(draw):
    width = draw(st.integers(2, 6))
    kinds = [
        nn.ReLU,
        nn.Tanh,
        lambda: nn.LayerNorm(width),
        lambda: nn.BatchNorm1d(width),
        lambda: nn.Dropout(0.3),
        lambda: nn.Linear(width, width, bias=False),
    ]
    layers = [make() for make in draw(st.lists(st.sampled_from(kinds), max_size=3))]
    return nn.Sequential(nn.Linear(4, width), *layers, nn.Linear(width, 3))


class Boom(Exception):
    pass


class Training:
    def __init__(self, model, optimizer, clip):
        self.model, self.clip = model, clip
        name, options = optimizer
        self.optimizer = getattr(optim, name)(model.parameters(), **options)
        self.fail: dict[str, int] = {}

    def count(self, place):
        if place in self.fail:
            self.fail[place] -= 1
            if self.fail[place] == 0:
                raise Boom(place)

    def loss(self, prediction, target):
        self.count("loss")
        return nn.functional.cross_entropy(prediction, target)

    def transform(self):
        self.count("transform")
        return nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.transform()
        self.optimizer.step()
        return loss.detach()

    def tensors(self):
        state = [
            value
            for one in self.model.parameters()
            for value in self.optimizer.state.get(one, {}).values()
            if value is not None
        ]
        return [*self.model.state_dict().values(), *state]


@pytest.mark.parametrize("device", DEVICES)
@few
@given(data=st.data())
def test_any_training(device, data):
    torch.manual_seed(data.draw(st.integers(0, 9)))
    model = data.draw(models()).to(device)
    optimizer = data.draw(optimizers(device))
    clip = data.draw(st.sampled_from([0.05, 10.0]))
    eager = Training(copy.deepcopy(model), optimizer, clip)
    ours = Training(model, optimizer, clip)
    source = torch.Generator().manual_seed(3)

    def batch():
        x = torch.randn(5, 4, generator=source)
        return x.to(device), torch.randint(3, (5,), generator=source).to(device)

    for number in range(data.draw(st.integers(0, 2))):
        made = batch()
        for training in (eager, ours):
            torch.manual_seed(number)
            training.step(*made)

    def capture(warmup_steps):
        return CudaGraphAdaptationStep.capture(
            ours.model,
            ours.optimizer,
            *batch(),
            ours.loss,
            warmup_steps=warmup_steps,
            gradient_transform=ours.transform,
            device=device,
        )

    warmup_steps = data.draw(st.integers(1, 3))
    before, keys = [one.clone() for one in ours.tensors()], set(ours.optimizer.state)
    grads = [one.grad for one in model.parameters()]
    for place in data.draw(st.lists(st.sampled_from(["loss", "transform"]), max_size=2)):
        ours.fail = {place: data.draw(st.integers(1, warmup_steps + 1))}
        with pytest.raises(Boom):
            capture(warmup_steps)
        ours.fail = {}
        assert_all_equal(ours.tensors(), before)
        assert set(ours.optimizer.state) == keys
        assert all(one.grad is old for one, old in zip(model.parameters(), grads, strict=True))
    step = capture(warmup_steps)

    for number in range(10):
        if data.draw(st.booleans()):
            rate = data.draw(rates(0.0, 0.1))
            for training in (eager, ours):
                training.optimizer.param_groups[0]["lr"] = rate
        made = batch()
        torch.manual_seed(number)
        expected = eager.step(*made)
        torch.manual_seed(number)
        assert torch.equal(step(*made), expected)
    assert_all_equal(ours.tensors(), eager.tensors())
    assert step.captures == 1
    assert step.verify(2).equal
    step.close()
