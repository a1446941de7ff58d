from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tensorplay_adapt import CudaGraphAdaptationStep
from tests.determinism import deterministic

from .optimizers import OPTIMIZERS


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that steps run on."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return request.param


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch's deterministic algorithms, on one thread: equal work gives equal bits."""
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with deterministic(warn_only=True):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request: pytest.FixtureRequest) -> Callable[[Any], torch.optim.Optimizer]:
    """Makes an optimizer of a model's parameters."""
    return OPTIMIZERS[request.param]


@pytest.fixture
def twins() -> type[Twins]:
    """Makes a captured training and an eager one that are to do the same for ever."""
    return Twins


@pytest.fixture
def make_net() -> type[Net]:
    """Makes the network that most tests train."""
    return Net


class Net(nn.Module):
    """Linear layers with batch norm, dropout and tied weights, for batches of 12 × 8."""

    def __init__(self, dropout: float = 0.0, norm: bool = True, frozen: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.middle = nn.Linear(16, 16)
        self.again = nn.Linear(16, 16)
        self.again.weight = self.middle.weight
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(16, 4)
        self.first.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.again(torch.tanh(self.middle(x)))
        return self.last(self.dropout(x))


class Training:
    """A model, its optimizer and what else a training has, as users write it down."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        clip: float | None = None,
        microbatches: int = 1,
        autocast: torch.dtype | None = None,
        scaler: dict[str, Any] | None = None,
        skip_nonfinite: bool = False,
        ema_decay: float | None = None,
    ) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.optimizer = optimizer(model)
        self.clip, self.microbatches, self.autocast = clip, microbatches, autocast
        self.skip_nonfinite, self.ema_decay = skip_nonfinite, ema_decay
        self.scaler = (
            torch.amp.GradScaler(self.device.type, **scaler) if scaler is not None else None
        )
        self.ema = copy.deepcopy(model) if ema_decay is not None else None
        self.norm: torch.Tensor | None = None

    def loss(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(prediction, target)

    def transform(self) -> torch.Tensor:
        assert self.clip is not None
        return nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One eager step."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        parts = zip(x.chunk(self.microbatches), y.chunk(self.microbatches), strict=True)
        for place, (inputs, targets) in enumerate(parts):
            context = (
                torch.autocast(self.device.type, self.autocast)
                if self.autocast is not None
                else contextlib.nullcontext()
            )
            with context:
                loss = self.loss(self.model(inputs), targets)
            if self.microbatches > 1:
                loss = loss / self.microbatches
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            total = total + loss.detach() if place else loss.detach()
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            self.norm = self.transform().clone()
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif not self.skip_nonfinite or self._finite():
            self.optimizer.step()
        if self.ema is not None:
            self._average()
        return total

    def _finite(self) -> bool:
        return all(
            bool(parameter.grad.isfinite().all())
            for parameter in self.model.parameters()
            if parameter.grad is not None
        )

    @torch.no_grad()
    def _average(self) -> None:
        assert self.ema is not None
        for averaged, parameter in zip(self.ema.parameters(), self.model.parameters(), strict=True):
            averaged.lerp_(parameter, 1 - self.ema_decay)
        for averaged, buffer in zip(self.ema.buffers(), self.model.buffers(), strict=True):
            averaged.copy_(buffer)

    def capture(self, x: Any, y: Any, **options: Any) -> CudaGraphAdaptationStep:
        return CudaGraphAdaptationStep.capture(
            self.model,
            self.optimizer,
            x,
            y,
            self.loss,
            gradient_transform=self.transform if self.clip is not None else None,
            microbatches=self.microbatches,
            autocast=self.autocast,
            scaler=self.scaler,
            skip_nonfinite=self.skip_nonfinite,
            ema=self.ema,
            ema_decay=self.ema_decay if self.ema_decay is not None else 0.999,
            device=self.device,
            **options,
        )

    def everything(self) -> dict[str, Any]:
        """All that lasts from one step to the next, optimizer settings included."""
        found: dict[str, Any] = dict(self.model.state_dict())
        state = self.optimizer.state_dict()
        for number, entries in state["state"].items():
            found |= {f"state {number} {key}": value for key, value in entries.items()}
        for number, group in enumerate(state["param_groups"]):
            found |= {f"group {number} {key}": value for key, value in group.items()}
        if self.scaler:
            found |= {f"scaler {key}": value for key, value in self.scaler.state_dict().items()}
        if self.ema is not None:
            found |= {f"ema {key}": value for key, value in self.ema.state_dict().items()}
        return found


class Twins:
    """A captured training and an eager one.

    Args:
        optimizer: Makes an optimizer of a model's parameters.
        model: Makes a model.
        captured: Options of the capture alone.
        warm: Steps taken eagerly by both before the capture.
        options: Of both trainings.
    """

    def __init__(
        self,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        model: Callable[[], nn.Module] = Net,
        device: str = "cpu",
        captured: dict[str, Any] | None = None,
        warm: int = 0,
        groups: bool = False,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        made = model().to(device)
        make = _grouped(optimizer) if groups else lambda model: optimizer(model.parameters())
        self.eager = Training(copy.deepcopy(made), make, **options)
        self.ours = Training(made, make, **options)
        self.device = torch.device(device)
        self.source = torch.Generator().manual_seed(1)
        self.captured = captured or {}
        for _ in range(warm):
            x, y = self.batch()
            for training in (self.eager, self.ours):
                self.seed(5)
                training.step(x, y)
        self.seed(2)
        self.step = self.ours.capture(*self.batch(), **self.captured)

    def seed(self, number: int) -> None:
        """As `torch.manual_seed`, which notes a whole stack for each kind of device not in use."""
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(number)
        torch.default_generator.manual_seed(number)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(12, 8, generator=self.source)
        y = torch.randint(4, (12,), generator=self.source)
        return x.to(self.device), y.to(self.device)

    def run(
        self,
        steps: int = 50,
        change: Callable[[int, torch.optim.Optimizer], object] | None = None,
        spoil: Callable[[int, torch.Tensor], object] | None = None,
    ) -> None:
        """Takes steps both ways and compares everything.

        Args:
            change: Called with the number of each step and each optimizer, before it.
            spoil: Called with the number of each step and its inputs.
        """
        for number in range(steps):
            x, y = self.batch()
            if spoil is not None:
                spoil(number, x)
            if change is not None:
                for training in (self.eager, self.ours):
                    change(number, training.optimizer)
            self.seed(number)
            expected = self.eager.step(x, y)
            after = self.random_state()
            self.seed(number)
            loss = self.step(x, y)
            assert_equal(loss, expected, f"loss of step {number}")
            assert torch.equal(self.random_state(), after), f"random state after step {number}"
            if self.eager.norm is not None:
                assert_equal(self.step.transform_result, self.eager.norm, f"norm of step {number}")
        if steps:  # Before the first, only the captured optimizer has its state.
            self.compare()

    def random_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state() if self.device.type == "cuda" else torch.get_rng_state()

    def compare(self) -> None:
        ours, eager = self.ours.everything(), self.eager.everything()
        assert ours.keys() == eager.keys()
        for name, expected in eager.items():
            assert_equal(ours[name], expected, name)


def assert_equal(one: Any, other: Any, name: str) -> None:
    if not isinstance(other, torch.Tensor):
        assert one == other, name
        assert type(one) is type(other), name
        return
    same = torch.equal(one, other) or bool(
        torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )
    assert same, f"{name}: {(one - other).abs().max().item()} apart"


def _grouped(optimizer: Callable[[Any], torch.optim.Optimizer]) -> Callable[..., Any]:
    """Weights in one group, all else in another with half the learning rate."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        weights = [one for one in model.parameters() if one.dim() > 1]
        others = [one for one in model.parameters() if one.dim() <= 1]
        made = optimizer([{"params": weights}, {"params": others}])
        made.param_groups[1]["lr"] = made.param_groups[0]["lr"] / 2
        return made

    return make
