"""What no step can be captured of is refused at once: arguments, losses, modules, devices."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import ArgumentError, ArgumentTypeError, CaptureError

from .steps import linear, mse


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
