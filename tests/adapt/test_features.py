"""What training puts around a step equals its eager form, over 50 steps, bit for bit."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import ArgumentError
from tests.equality import assert_all_equal

from .optimizers import adamw, sgd


def test_clipping_and_its_norm(twins, optimizer, device):
    twins(optimizer, device=device, clip=0.1).run()


def test_accumulation_over_microbatches(twins, optimizer, device):
    twins(optimizer, device=device, clip=0.5, microbatches=3).run()


def test_bfloat16_autocast(twins, optimizer, device):
    twins(optimizer, device=device, autocast=torch.bfloat16).run()


def test_dropout_follows_eagers_random_stream(twins, optimizer, device, make_net):
    twins(optimizer, device=device, model=lambda: make_net(dropout=0.4)).run()


def test_dropout_in_microbatches(twins, device, make_net):
    twins(adamw, device=device, model=lambda: make_net(dropout=0.4), microbatches=2).run()


def test_frozen_parameters(twins, optimizer, device, make_net):
    twins(optimizer, device=device, model=lambda: make_net(frozen=True)).run()


def test_averaged_weights(twins, optimizer, device):
    twins(optimizer, device=device, ema_decay=0.9).run()


def test_averaged_weights_are_those_of_torchs_averaged_model(twins, device):
    pair = twins(adamw, device=device, ema_decay=0.9)
    swa = optim.swa_utils
    averaged = swa.AveragedModel(
        pair.eager.model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.9), device=pair.device
    )
    averaged.update_parameters(pair.eager.model)  # The first one copies.
    for _ in range(5):
        x, y = pair.batch()
        pair.step(x, y)
        pair.eager.step(x, y)
        averaged.update_parameters(pair.eager.model)
    for ours, theirs in zip(pair.ours.ema.parameters(), averaged.module.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def spoilt(number, x):
    if number % 5 == 3:
        x[0, 0] = float("nan" if number % 2 else "inf")


def test_a_step_that_is_not_finite_is_skipped(twins, optimizer, device, make_net):
    pair = twins(optimizer, device=device, model=lambda: make_net(norm=False), skip_nonfinite=True)
    pair.run(spoil=spoilt)
    assert all(one.isfinite().all() for one in pair.ours.model.parameters())


def test_skipping_with_clipping(twins, device, make_net):
    twins(
        sgd, device=device, model=lambda: make_net(norm=False), skip_nonfinite=True, clip=0.1
    ).run(spoil=spoilt)


SCALER = {"init_scale": 2.0**10, "growth_interval": 4}


def test_a_scaler_scales_skips_and_adapts_on_the_device(twins, optimizer, device, make_net):
    pair = twins(optimizer, device=device, model=lambda: make_net(norm=False), scaler=SCALER)
    pair.run(spoil=spoilt)
    assert pair.ours.scaler.get_scale() != 2.0**10


def test_a_scaler_with_clipping_and_microbatches(twins, optimizer, device, make_net):
    twins(
        optimizer,
        device=device,
        model=lambda: make_net(norm=False),
        scaler=SCALER,
        clip=0.1,
        microbatches=2,
    ).run(spoil=spoilt)


def test_half_precision_with_a_scaler(twins, device, make_net):
    twins(
        adamw,
        device=device,
        model=lambda: make_net(norm=False),
        scaler=SCALER,
        autocast=torch.float16 if device == "cuda" else torch.bfloat16,
    ).run(spoil=spoilt)


def test_a_scaler_that_was_used_before(twins, device):
    twins(adamw, device=device, scaler=SCALER, warm=3).run(20)


def test_a_disabled_scaler_is_none(twins, device):
    twins(adamw, device=device, scaler={"enabled": False}).run(5)


class Metered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.seen.add_(x.shape[0])
        return self.linear(x)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_metrics_come_back_and_stay_as_they_are(device, microbatches):
    model = Metered().to(device)

    def loss(prediction, target):
        losses = nn.functional.cross_entropy(prediction, target, reduction="none")
        right = (prediction.argmax(1) == target).float().mean()
        return losses.mean(), {"accuracy": right, "losses": losses}

    x, y = torch.randn(6, 8, device=device), torch.arange(6, device=device) % 4
    step = CudaGraphAdaptationStep.capture(
        model,
        optim.SGD(model.parameters(), lr=0.5),
        x,
        y,
        loss,
        microbatches=microbatches,
        device=device,
    )
    assert model.seen.item() == 0
    assert step.metrics == {}
    first = step(x, y)
    kept = step.metrics
    before = {name: value.clone() for name, value in kept.items()}
    assert kept["losses"].shape == ((6,) if microbatches == 1 else (2, 3))
    assert torch.allclose(kept["losses"].mean(), first)
    second = step(x, y)
    assert second < first
    assert step.metrics is not kept
    assert_all_equal(kept, before)
    assert not torch.equal(step.metrics["losses"], kept["losses"])
    assert model.seen.item() == 12


def test_the_transforms_result_may_be_nested(device):
    model = nn.Linear(8, 4).to(device)
    parameters = list(model.parameters())

    def transform():
        norms = {"weight": parameters[0].grad.norm(), "bias": parameters[1].grad.norm()}
        return norms, None

    x, y = torch.randn(6, 8, device=device), torch.arange(6, device=device) % 4
    step = CudaGraphAdaptationStep.capture(
        model,
        optim.SGD(parameters, lr=0.5),
        x,
        y,
        nn.functional.cross_entropy,
        gradient_transform=transform,
        device=device,
    )
    step(x, y)
    norms, nothing = step.transform_result
    assert nothing is None
    assert torch.equal(norms["bias"], step.gradients["bias"].norm())


def test_a_transform_that_returns_what_a_replay_cannot_compute_is_refused():
    model = nn.Linear(8, 4)
    with pytest.raises(ArgumentError, match="which replays would not compute anew"):
        CudaGraphAdaptationStep.capture(
            model,
            optim.SGD(model.parameters(), lr=0.5),
            torch.randn(6, 8),
            torch.arange(6) % 4,
            nn.functional.cross_entropy,
            gradient_transform=lambda: 3.5,
            device="cpu",
        )


def test_microbatches_that_do_not_split_evenly_are_refused(twins):
    with pytest.raises(ArgumentError, match=r"first dimension is 12, no multiple of 5"):
        twins(sgd, microbatches=5)


class Noisy(nn.Module):
    """Adds noise from a generator of its own."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.own = torch.Generator(device).manual_seed(3)

    def forward(self, x):
        noise = torch.empty_like(x).normal_(generator=self.own)
        return self.linear(x + noise)


def test_a_generator_of_ones_own_advances_as_eagers(device):
    torch.manual_seed(0)
    ours, eager = (Noisy(device).to(device) for _ in range(2))
    eager.load_state_dict(ours.state_dict())
    optimizers = [sgd(one.parameters()) for one in (ours, eager)]
    x, y = torch.randn(6, 8, device=device), torch.arange(6, device=device) % 4
    loss = nn.functional.cross_entropy
    step = CudaGraphAdaptationStep.capture(ours, optimizers[0], x, y, loss, device=device)
    assert torch.equal(ours.own.get_state(), eager.own.get_state())
    for _ in range(10):
        optimizers[1].zero_grad()
        expected = loss(eager(x), y)
        expected.backward()
        optimizers[1].step()
        assert torch.equal(step(x, y), expected)
        assert torch.equal(ours.own.get_state(), eager.own.get_state())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(twins, device, mode):
    pair = twins(sgd, device=device)
    x, y = pair.batch()
    with mode():
        again = pair.ours.capture(x, y)
        loss = again(x, y)
    assert torch.equal(loss, pair.eager.step(x, y))
    pair.compare()


def test_threads_take_whole_steps(twins, device):
    pair = twins(sgd, device=device)
    x, y = pair.batch()
    workers = [
        threading.Thread(target=lambda: [pair.step(x, y) for _ in range(10)]) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for _ in range(40):
        pair.eager.step(x, y)
    if device == "cuda":
        torch.cuda.synchronize()
    pair.compare()
