"""The class itself: names and defaults, what a call takes and returns, how it ends."""

from __future__ import annotations

import dataclasses
import inspect
from typing import NamedTuple

import pytest
import torch
from torch import nn, optim

import tensorplay_adapt
import tensorplay_torch as tt
from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import ArgumentTypeError, GraphStateError, SignatureMismatch

from .steps import captured


def test_names_order_and_defaults():
    fields = dataclasses.fields(CudaGraphAdaptationStep)
    assert [one.name for one in fields] == [
        "module",
        "optimizer",
        "static_inputs",
        "static_targets",
        "graph",
        "static_loss",
    ]
    assert all(one.default is dataclasses.MISSING for one in fields)
    assert list(inspect.signature(CudaGraphAdaptationStep).parameters) == [
        one.name for one in fields
    ]
    capture = inspect.signature(CudaGraphAdaptationStep.capture).parameters
    assert list(capture)[:7] == [
        "module",
        "optimizer",
        "example_inputs",
        "example_targets",
        "loss_function",
        "warmup_steps",
        "gradient_transform",
    ]
    assert capture["warmup_steps"].default == 3
    assert capture["gradient_transform"].default is None
    keyword_only = [one.name for one in capture.values() if one.kind is one.KEYWORD_ONLY]
    assert keyword_only == list(capture)[5:]
    call = inspect.signature(CudaGraphAdaptationStep.__call__).parameters
    assert list(call) == ["self", "inputs", "targets", "synchronize"]
    assert call["synchronize"].default is False
    assert call["synchronize"].kind is inspect.Parameter.KEYWORD_ONLY
    assert {"CudaGraphAdaptationStep", "TensorLoss", "GradientTransform"} <= set(
        tensorplay_adapt.__all__
    )


def test_the_loss_is_its_callers(device):
    step, x, y = captured(device)
    first = step(x, y)
    assert first.shape == ()
    assert not first.requires_grad
    value = first.item()
    second = step(x, y, synchronize=True)
    assert second.item() != value
    assert first.item() == value
    assert first.data_ptr() not in (second.data_ptr(), step.static_loss.data_ptr())


def test_static_fields_are_live(device):
    step, x, y = captured(device)
    loss = step(x + 1, y - 1)
    assert torch.equal(step.static_inputs, x + 1)
    assert torch.equal(step.static_targets, y - 1)
    assert torch.equal(step.static_loss, loss)
    assert step.module is not None
    assert isinstance(step.graph, tt.CUDAGraph)


def test_the_static_batch_itself_may_be_passed(device):
    step, x, y = captured(device)
    first = step(x, y)
    assert step(step.static_inputs, step.static_targets) < first


def test_inputs_are_checked_not_broadcast(device):
    step, x, y = captured(device)
    before = step.static_inputs.clone(), step.module.weight.detach().clone()
    with pytest.raises(SignatureMismatch) as met:
        step(x[:1], y.double())
    assert met.value.differences == (
        "inputs.shape: captured (3, 4), got (1, 4)",
        "targets.dtype: captured torch.float32, got torch.float64",
    )
    with pytest.raises(SignatureMismatch, match=r"inputs\.stride: captured \(4, 1\)"):
        step(torch.randn(4, 3, device=device).t(), y)
    with pytest.raises(SignatureMismatch, match="targets: captured a tensor, got NoneType"):
        step(x, None)
    assert torch.equal(step.static_inputs, before[0])
    assert torch.equal(step.module.weight, before[1])


class Pair(NamedTuple):
    one: torch.Tensor
    other: object


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, batch):
        out = self.linear(batch["x"] * batch["scale"])
        if batch["pair"].other is not None:
            out = out + batch["pair"].other
        return out + batch["pair"].one


def test_batches_may_be_nested_and_hold_constants(device):
    torch.manual_seed(0)
    model = Nested().to(device)
    twin = Nested().to(device)
    twin.load_state_dict(model.state_dict())

    def batch(scale=2.0):
        x = torch.randn(3, 4, device=device)
        return {"x": x, "scale": scale, "pair": Pair(torch.randn(3, 2, device=device), None)}

    optimizers = [optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (model, twin)]
    step = CudaGraphAdaptationStep.capture(
        model,
        optimizers[0],
        batch(),
        None,
        lambda prediction, nothing: prediction.square().mean(),
        device=device,
    )
    for _ in range(5):
        fresh = batch()
        loss = step(dict(reversed(fresh.items())), None)
        optimizers[1].zero_grad()
        expected = twin(fresh).square().mean()
        expected.backward()
        optimizers[1].step()
        assert torch.equal(loss, expected)
    assert torch.equal(model.linear.weight, twin.linear.weight)
    with pytest.raises(SignatureMismatch, match=r"inputs\['scale'\]: captured 2.0, got 3.0"):
        step(batch(3.0), None)
    with pytest.raises(SignatureMismatch, match=r"inputs\['pair'\]\.other"):
        step({**batch(), "pair": Pair(fresh["pair"].one, fresh["pair"].one)}, None)
    with pytest.raises(SignatureMismatch, match=r"inputs\['x'\]: captured, not given"):
        step({"scale": 2.0, "pair": fresh["pair"]}, None)


@pytest.mark.parametrize("on_change", ["raise", "recapture"])
@pytest.mark.parametrize(
    "launch",
    [
        lambda step, x, y, before: step(x, y),
        lambda step, x, y, before: step(x[:1], y[:1]),
        lambda step, x, y, before: step.until(x, y, tolerance=0.0, max_steps=3),
        lambda step, x, y, before: step.reset_to(before),
        lambda step, x, y, before: step.verify(2),
        lambda step, x, y, before: step.report(),
    ],
    ids=["call", "another batch", "until", "reset_to", "verify", "report"],
)
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_a_closed_step_refuses_and_trains_no_more(device, launch, on_change, used):
    step, x, y = captured(device, on_change=on_change)
    before = step.snapshot()
    if used:
        step(x, y)
        step.until(x, y, tolerance=0.0, max_steps=2)
        step.reset_to(before)
    weights = step.module.weight.detach().clone()
    step.close()
    step.close()
    assert step.stale == ("it is closed",)
    step.optimizer.param_groups[0]["lr"] = 0.7
    with pytest.raises(GraphStateError, match="closed"):
        launch(step, x, y, before)
    assert torch.equal(step.module.weight, weights)
    assert step.captures == 1


def test_what_is_no_snapshot_is_refused(device):
    step, _, _ = captured(device)
    with pytest.raises(ArgumentTypeError, match="the snapshot is"):
        step.reset_to(5)


def test_it_tells_what_it_is(device):
    step, _, _ = captured(device)
    assert repr(step).startswith("<CudaGraphAdaptationStep of Linear by SGD: <CUDAGraph #")
    assert step.captures == 1
    assert step.stale == ()
    assert sorted(step.gradients) == ["bias", "weight"]


@pytest.mark.gpu
def test_steps_on_different_streams_come_one_after_the_other(twins):
    pair = twins(
        lambda parameters: optim.AdamW(parameters, fused=True, capturable=True), device="cuda"
    )
    streams = [torch.cuda.Stream() for _ in range(3)]
    for number in range(30):
        x, y = pair.batch()
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[number % 3]):
            pair.step(x, y)
        pair.eager.step(x, y)
    torch.cuda.synchronize()
    pair.compare()
