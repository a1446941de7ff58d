"""The class itself: names and defaults, what a call takes and returns, one's own graphs."""

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
from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    GraphStateError,
    SignatureMismatch,
)

mse = nn.functional.mse_loss


def linear(device, seed=0, **options):
    torch.manual_seed(seed)
    model = nn.Linear(4, 2).to(device)
    return model, optim.SGD(model.parameters(), lr=0.1, **options)


def captured(device, **options):
    model, optimizer = linear(device)
    x, y = torch.randn(3, 4, device=device), torch.randn(3, 2, device=device)
    step = CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device, **options)
    return step, x, y


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


def test_a_graph_of_ones_own(device):
    model, optimizer = linear(device, momentum=0.9)
    twin, eager = linear(device, momentum=0.9)
    x, y = torch.randn(3, 4, device=device), torch.randn(3, 2, device=device)

    def run(model, optimizer, x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = mse(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for one in ((model, optimizer), (twin, eager)):
        run(*one, x, y)  # Momentum exists from the first step on.
    graph = tt.CUDAGraph(device=device)
    with tt.graph(graph, capture_error_mode="thread_local"):
        loss = run(model, optimizer, x, y)
    step = CudaGraphAdaptationStep(model, optimizer, x, y, graph, loss)
    for _ in range(5):
        fresh = torch.randn(3, 4, device=device), torch.randn(3, 2, device=device)
        assert torch.equal(step(*fresh), run(twin, eager, *fresh))
    assert torch.equal(model.weight, twin.weight)
    with pytest.raises(SignatureMismatch):
        step(fresh[0][:1], fresh[1])
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(tt.StaleGraph, match=r"\['lr'\] is 0\.5, and 0\.1 is fixed"):
        step(*fresh)
    optimizer.param_groups[0]["lr"] = 0.1
    model.bias.requires_grad_(False)
    with pytest.raises(tt.StaleGraph, match=r"bias\.requires_grad is False, was True"):
        step(*fresh)
    model.bias.requires_grad_(True)
    with pytest.raises(GraphStateError, match="loss function is not known"):
        step.verify(2)
    step.close()
    graph.replay()  # It stays its maker's.


@pytest.mark.gpu
def test_a_graph_of_torchs():
    model, optimizer = linear("cuda")
    x, y = torch.randn(3, 4, device="cuda"), torch.randn(3, 2, device="cuda")

    def run():
        optimizer.zero_grad(set_to_none=True)
        loss = mse(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = run()
    step = CudaGraphAdaptationStep(model, optimizer, x, y, graph, loss)
    first = step(torch.ones_like(x), torch.zeros_like(y))
    assert step(torch.ones_like(x), torch.zeros_like(y)) < first
    with pytest.raises(SignatureMismatch):
        step(torch.ones_like(x)[:1], torch.zeros_like(y))


@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [
        (lambda p, y: (p - y).square(), ArgumentError, r"its loss has shape \(3, 2\)"),
        (lambda p, y: (p - y).square().mean().detach(), ArgumentError, "does not depend on any"),
        (lambda p, y: 1.0, ArgumentTypeError, "it returned 1.0"),
        (lambda p, y: None, ArgumentTypeError, "it returned None"),
        (lambda p, y: (p.mean(), [1]), ArgumentTypeError, "beside the loss it returned"),
        (lambda p, y: (p.mean(), {"a": 1}), ArgumentTypeError, "beside the loss it returned"),
    ],
    ids=["not 0-d", "detached", "float", "None", "list of metrics", "float metric"],
)
def test_what_is_no_loss_is_refused(loss, kind, words):
    model, optimizer = linear("cpu")
    with pytest.raises(kind, match=words):
        CudaGraphAdaptationStep.capture(
            model, optimizer, torch.randn(3, 4), torch.randn(3, 2), loss, device="cpu"
        )
    assert not optimizer.state


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"warmup_steps": True}, "warmup_steps is True"),
        ({"microbatches": 0}, "microbatches is 0"),
        ({"gradient_transform": 3}, "gradient_transform is 3"),
        ({"autocast": torch.float32}, "autocast is torch.float32"),
        ({"scaler": object()}, "scaler is <object"),
        ({"ema": object()}, "ema is <object"),
        ({"ema": nn.Linear(4, 3)}, "ema is no copy of the module"),
        ({"ema_decay": 1.5}, "ema_decay is 1.5"),
        ({"on_change": "ignore"}, "on_change is 'ignore'"),
        ({"device": "cuda:9"}, "cuda:9"),
        ({"module": 3}, "module is 3"),
        ({"module": nn.ReLU()}, "has no parameters|no parameters to adapt"),
        ({"optimizer": None}, "optimizer is None"),
        ({"loss_function": "mse"}, "loss_function is 'mse'"),
        ({"example_inputs": torch.randn(3, 4, requires_grad=True)}, "it requires grad"),
        ({"example_inputs": torch.randn(4, 3).expand(2, 4, 3)}, "not plain dense memory"),
        ({"example_inputs": torch.randn(3, 4).to_sparse()}, "not plain dense memory"),
        ({"example_inputs": {"x": [object()]}}, "which may change without a graph noticing"),
        ({"example_inputs": 1, "example_targets": None}, "it holds no tensor"),
        (
            {"scaler": torch.amp.GradScaler("cpu"), "skip_nonfinite": True},
            "both scaler and skip_nonfinite",
        ),
    ],
)
def test_arguments_that_are_not_as_described_are_refused(change, words):
    model, optimizer = linear("cpu")
    arguments = {
        "module": model,
        "optimizer": optimizer,
        "example_inputs": torch.randn(3, 4),
        "example_targets": torch.randn(3, 2),
        "loss_function": mse,
        "device": "cpu",
    } | change
    if isinstance(arguments["module"], nn.ReLU):
        arguments["optimizer"] = optim.SGD([{"params": []}], lr=0.1)
    with pytest.raises(ArgumentError, match=words):
        CudaGraphAdaptationStep.capture(**arguments)


def test_an_averaged_model_is_refused_with_what_to_pass():
    model, optimizer = linear("cpu")
    with pytest.raises(ArgumentError, match=r"Pass averaged\.module"):
        CudaGraphAdaptationStep.capture(
            model,
            optimizer,
            torch.randn(3, 4),
            torch.randn(3, 2),
            mse,
            ema=optim.swa_utils.AveragedModel(model),
            device="cpu",
        )


def test_lazy_parameters_are_refused():
    model = nn.Sequential(nn.LazyLinear(2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match=r"0\.weight has no shape yet"):
        CudaGraphAdaptationStep.capture(
            model, optimizer, torch.randn(3, 4), torch.randn(3, 2), mse, device="cpu"
        )


def test_parameters_that_dispatch_by_themselves_are_refused():
    class Sharded(nn.Parameter):
        """As FSDP's are."""

    model = nn.Linear(4, 2)
    model.weight = Sharded(model.weight.detach())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match=r"weight is a .*Sharded, a tensor that dispatches"):
        CudaGraphAdaptationStep.capture(
            model, optimizer, torch.randn(3, 4), torch.randn(3, 2), mse, device="cpu"
        )


@pytest.mark.gpu
def test_a_module_on_the_cpu_where_there_is_a_gpu_is_refused_unless_meant():
    model, optimizer = linear("cpu")
    x, y = torch.randn(3, 4), torch.randn(3, 2)
    with pytest.raises(ArgumentError, match="there is a GPU here"):
        CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse)
    CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device="cpu")(x, y)


def test_a_closed_step_says_so(device):
    step, x, y = captured(device)
    step.close()
    step.close()
    with pytest.raises(GraphStateError, match="closed"):
        step(x, y)


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
