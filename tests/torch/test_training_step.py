"""Whole training steps: replay equals eager, bit for bit, and not the first replay only."""

from __future__ import annotations

import inspect

import pytest
import torch

import tensorplay_torch as tp
from tests.determinism import deterministic

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Net(torch.nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3, padding=1),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.AvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(64, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True, capturable=True),
}


class Trainer:
    def __init__(self, device: str, optimizer: str, dropout: float, clip: bool) -> None:
        torch.manual_seed(0)
        self.model = Net(dropout).to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.x = torch.randn(8, 1, 8, 8, device=device)
        self.y = torch.randint(5, (8,), device=device)
        self.clip = clip

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def feed(self, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        self.x.copy_(torch.randn(8, 1, 8, 8, generator=source))
        self.y.copy_(torch.randint(5, (8,), generator=source))

    def everything(self) -> list[torch.Tensor]:
        state = [v for s in self.optimizer.state.values() for v in s.values()]
        return [*self.model.state_dict().values(), *(v for v in state if v is not None)]


@pytest.fixture
def exact():
    """Kernels that give the same bits each time, chosen without a trial."""
    cudnn = torch.backends.cudnn
    # Some modules of torch's own tests forbid to assign a flag, once they are imported; `flags`
    # sets every one, and those it is not told of to what it thinks is best.
    flags = {name: getattr(cudnn, name, None) for name in inspect.signature(cudnn.flags).parameters}
    with cudnn.flags(**flags | {"benchmark": False}), deterministic(warn_only=False):
        yield


def warmed(trainer: Trainer, device: str) -> None:
    """One eager step, on a side stream where there is a GPU: it creates the optimizer's state."""
    if device == "cpu":
        trainer.step()
        return
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        trainer.step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_step_replays_as_it_runs(exact, monkeypatch, device, optimizer, dropout, clip):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    eager, ours = (Trainer(device, optimizer, dropout, clip) for _ in range(2))
    random = torch.cuda if device == "cuda" else torch
    for trainer in (eager, ours):
        torch.manual_seed(1)
        warmed(trainer, device)
    g = tp.CUDAGraph(device=device)
    before = random.get_rng_state()
    with tp.graph(g):
        loss = ours.step()
    assert torch.equal(random.get_rng_state(), before)

    for seed in range(4):
        for trainer in (eager, ours):
            trainer.feed(seed)
            torch.manual_seed(seed) if seed != 2 else None
            random.set_rng_state(before) if seed == 2 else None
            start = random.get_rng_state()
            if trainer is eager:
                expected = eager.step()
                after = random.get_rng_state()
            else:
                g.replay()
                assert torch.equal(random.get_rng_state(), after)
                assert torch.equal(after, start) == (dropout == 0)
        assert torch.equal(loss, expected)
        for a, b in zip(ours.everything(), eager.everything(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_stay_bound_to_the_graphs_buffers_and_an_eager_optimizer_reads_them(device):
    torch.manual_seed(0)
    eager, model = (torch.nn.Linear(4, 2).to(device) for _ in range(2))
    model.load_state_dict(eager.state_dict())
    x = torch.randn(3, 4, device=device)
    for one in (eager, model):
        one(x).square().mean().backward()
        one.zero_grad(set_to_none=True)
    g = tp.CUDAGraph(device=device)
    with tp.graph(g):
        model(x).square().mean().backward()
    bound = model.weight.grad
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (eager, model)]
    for seed in range(3):
        x.copy_(torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)))
        eager.zero_grad(set_to_none=True)
        eager(x).square().mean().backward()
        g.replay()
        assert model.weight.grad is bound
        assert torch.equal(bound, eager.weight.grad)
        for optimizer in optimizers:
            optimizer.step()
        assert torch.equal(model.weight, eager.weight)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_follows_reseeding_between_replays(device):
    x = torch.ones(64, device=device)
    torch.nn.functional.dropout(x)
    g = tp.CUDAGraph(device=device)
    with tp.graph(g):
        y = torch.nn.functional.dropout(x)
        z = torch.rand_like(x)
    for seed in (6, 128, 9999, 6):
        torch.manual_seed(seed)
        expected = [(torch.nn.functional.dropout(x), torch.rand_like(x)) for _ in range(3)]
        torch.manual_seed(seed)
        for dropped, random in expected:
            g.replay()
            assert torch.equal(y, dropped)
            assert torch.equal(z, random)


@pytest.mark.parametrize("device", DEVICES)
def test_a_registered_generator_advances_with_the_graph(device):
    own = torch.Generator(device).manual_seed(3)
    x = torch.empty(16, device=device)
    x.uniform_(generator=own)
    g = tp.CUDAGraph(device=device)
    g.register_generator_state(own)
    with tp.graph(g):
        x.uniform_(generator=own)
    for seed in (5, 7):
        own.manual_seed(seed)
        expected = [torch.empty_like(x).uniform_(generator=own) for _ in range(3)]
        own.manual_seed(seed)
        for value in expected:
            g.replay()
            assert torch.equal(x, value)
