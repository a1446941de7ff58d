"""Whole training steps recorded on the CPU, replayed beside an eager twin, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from tensorplay_core import OperationRefused
from tests.equality import assert_all_equal

STEPS = 12
BATCH = 6

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD single": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, foreach=False),
    "SGD fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "SGD maximize": lambda p: optim.SGD(p, lr=0.01, maximize=True),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.5),
    "Adadelta single": lambda p: optim.Adadelta(p, lr=0.5, foreach=False, weight_decay=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01),
    "RMSprop centered": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "Adam fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "Adam capturable": lambda p: optim.Adam(p, lr=0.01, fused=True, capturable=True, amsgrad=True),
    "AdamW fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "Adagrad fused": lambda p: optim.Adagrad(p, lr=0.1, fused=True),
}
HOST = {
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Adamax": optim.Adamax,
    "ASGD": optim.ASGD,
    "Adagrad": optim.Adagrad,
    "Adafactor": optim.Adafactor,
}
"""Optimizers that work with numbers on the host."""


class Mixed(nn.Module):
    """Convolution, statistics, dropout, an in-place activation, views."""

    features = (2, 8)

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu_(self.norm(self.conv(x)))
        return self.head(F.dropout(F.max_pool1d(y, 2), 0.3, self.training).flatten(1))


class Tied(nn.Module):
    """Shared parameters, an embedding, a parameter that is not used, slices of a parameter."""

    features = (4,)

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.idle = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        index = (x[:, 0] > 0).long() + 2
        y = self.second(self.first(x).tanh()) + self.table(index)
        return (y * self.first.weight[0])[:, :3]


class Recurrent(nn.Module):
    features = (4, 5)

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.2, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(x)
        y = self.norm(y + self.attention(y, y, y, need_weights=False)[0])
        return self.head(y.mean(1))


class Trainer:
    """A model, an optimizer and static buffers for a batch."""

    def __init__(self, model: nn.Module, optimizer, *, clip=False, keep=False) -> None:
        self.model = model
        self.optimizer = optimizer(list(model.parameters()))
        self.x = torch.zeros(BATCH, *model.features)
        self.y = torch.zeros(BATCH, dtype=torch.long)
        self.clip, self.keep = clip, keep

    def feed(self, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        self.x.copy_(torch.randn(self.x.shape, generator=source))
        self.y.copy_(torch.randint(3, (BATCH,), generator=source))

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=not self.keep)
        loss = F.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        norm = torch.zeros(())
        if self.clip:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return torch.stack([loss.detach(), norm])

    def lasting(self) -> list[torch.Tensor]:
        """What no capture moves: the model's and the optimizer's."""
        entries = [entry for one in self.optimizer.state.values() for entry in one.values()]
        found = [*self.model.state_dict().values(), *entries]
        return [tensor.clone() for tensor in found if isinstance(tensor, torch.Tensor)]

    def gradients(self) -> list[torch.Tensor]:
        return [p.grad.clone() for p in self.model.parameters() if p.grad is not None]

    def state(self) -> list[torch.Tensor]:
        return [*self.lasting(), *self.gradients()]


def twins(model: type[nn.Module], optimizer: str, **options):
    torch.manual_seed(0)
    built = model()
    pair = [Trainer(copy.deepcopy(built), OPTIMIZERS[optimizer], **options) for _ in range(2)]
    for trainer in pair:
        torch.manual_seed(7)
        trainer.feed(100)
        trainer.step()
    return pair


def train(record, eager: Trainer, captured: Trainer) -> None:
    captured.x.fill_(float("nan"))
    before, gradients = captured.lasting(), captured.gradients()
    recorded = record(captured.step)
    assert_all_equal(captured.lasting(), before)
    if captured.keep:  # Else the step has dropped them for the graph's own.
        assert_all_equal(captured.gradients(), gradients)
    for seed in range(STEPS):
        results = []
        for trainer, step in ((eager, eager.step), (captured, recorded.replay)):
            # torch.manual_seed notes its stack for each kind of device, which takes its time.
            torch.default_generator.manual_seed(seed)
            trainer.feed(seed)
            results.append((step(), torch.get_rng_state()))
        (expected, theirs), (_, ours) = results
        assert torch.equal(recorded.result, expected), (seed, recorded.result, expected)
        assert torch.equal(ours, theirs), seed
        assert_all_equal(captured.state(), eager.state())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(record, optimizer):
    train(record, *twins(Mixed, optimizer))


@pytest.mark.parametrize("model", [Mixed, Tied, Recurrent])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("keep", [False, True], ids=["fresh grads", "kept grads"])
def test_models(record, model, clip, keep):
    train(record, *twins(model, "AdamW fused", clip=clip, keep=keep))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precisions(record, dtype):
    pair = twins(Mixed, "SGD momentum")
    for trainer in pair:
        trainer.model.to(dtype)
        trainer.x = trainer.x.to(dtype)
        trainer.optimizer = OPTIMIZERS["SGD momentum"](list(trainer.model.parameters()))
        torch.manual_seed(1)
        trainer.step()
    train(record, *pair)


def test_a_learning_rate_in_a_tensor_is_read_at_each_replay(record):
    def optimizer(parameters):
        return optim.AdamW(parameters, lr=torch.tensor(0.01), fused=True, capturable=True)

    torch.manual_seed(0)
    model = Tied()
    eager, captured = (Trainer(copy.deepcopy(model), optimizer) for _ in range(2))
    for trainer in (eager, captured):
        trainer.feed(1)
        trainer.step()
    recorded = record(captured.step)
    for seed in range(STEPS):
        for trainer, step in ((eager, eager.step), (captured, recorded.replay)):
            trainer.optimizer.param_groups[0]["lr"].fill_(0.1 / (seed + 1))
            trainer.feed(seed)
            step()
    assert_all_equal(captured.state(), eager.state())


@pytest.mark.parametrize("name", HOST)
def test_optimizers_that_read_the_host_are_refused(record, name):
    torch.manual_seed(0)
    trainer = Trainer(Mixed(), lambda parameters: HOST[name](parameters, lr=0.01))
    trainer.feed(0)
    trainer.step()
    before = trainer.state()
    with pytest.raises(OperationRefused) as refusal:
        record(trainer.step)
    assert f"{name}.step()" in refusal.value.remedy
    assert "Adam(..., fused=True, capturable=True)" in refusal.value.remedy
    assert refusal.value.where.startswith(__file__)
    assert_all_equal(trainer.state(), before)
