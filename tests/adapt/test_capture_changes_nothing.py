"""Capture leaves memory, bindings, random states and modes as they were, also when it fails."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_adapt.optimizers import takes_fused_steps
from tensorplay_core.errors import CaptureInvalidated

from .everything import Everything, training
from .steps import mse


class Boom(Exception):
    pass


@pytest.mark.parametrize("warm", [False, True], ids=["no state yet", "state and grads"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 3])
def test_a_capture(device, warm, warmup_steps):
    model, optimizer, x, y = training(device, warm=warm)
    batch = x.clone(), y.clone()
    before = Everything(model, optimizer, keep_keys=warm)
    step = CudaGraphAdaptationStep.capture(
        model, optimizer, x, y, mse, warmup_steps=warmup_steps, device=device
    )
    before.check()
    assert torch.equal(x, batch[0])
    assert torch.equal(y, batch[1])
    step.verify(2)
    step.report()
    before.check()


def test_with_inputs_that_the_module_overwrites(device):
    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(2))

    model = Scaled(4, 2).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    with torch.no_grad():
        expected = mse(nn.functional.linear(x * 2, model.weight, model.bias), y)
    step = CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device)
    assert torch.equal(step(x, y), expected)


def test_a_loss_that_is_still_held(device):
    """Gradients go to its parameters on the stream of its forward, which a capture cannot join."""
    model = nn.Linear(4, 2).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    held = mse(model(x), y)
    before = Everything(model, optimizer)
    if device == "cuda" and not hasattr(torch._C, "_set_override_stale_capture_stream"):
        with pytest.raises(CaptureInvalidated, match="del loss"):
            CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device)
        before.check()
        held = held.detach()
    step = CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device)
    before.check()
    assert torch.equal(step(x, y), held)


def test_memory_that_nobody_named_is_put_back_too(device):
    total = torch.zeros((), device=device)
    model = nn.Linear(4, 2).to(device)

    def loss(prediction, target):
        total.add_(1)
        return mse(prediction, target)

    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    step = CudaGraphAdaptationStep.capture(
        model, optim.SGD(model.parameters(), lr=0.1), x, y, loss, device=device
    )
    assert total.item() == 0
    for _ in range(4):
        step(x, y)
    assert total.item() == 4
    step.verify(3)
    assert total.item() == 4


@pytest.mark.parametrize("place", ["forward", "loss", "transform", "backward"])
@pytest.mark.parametrize("call", [1, 2, 3, 4], ids=lambda n: f"call {n}")
@pytest.mark.parametrize("warm", [False, True], ids=["no state yet", "state and grads"])
def test_a_failure_anywhere(device, place, call, warm):
    model, optimizer, x, y = training(device, warm=warm)
    calls = {"forward": 0, "loss": 0, "transform": 0, "backward": 0}
    refuse = [True]

    def count(where):
        calls[where] += 1
        if refuse[0] and where == place and calls[where] == call:
            raise Boom(where)

    class Breaking(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            count("backward")
            return gradient.clone()

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            count("forward")
            return Breaking.apply(self.inner(x))

    def loss(prediction, target):
        count("loss")
        return mse(prediction, target)

    before = Everything(model, optimizer)

    def capture():
        return CudaGraphAdaptationStep.capture(
            Module(),
            optimizer,
            x,
            y,
            loss,
            gradient_transform=lambda: count("transform"),
            device=device,
        )

    with pytest.raises(Boom) as met:  # Calls 1 to 3 are warm-up, 4 is the capture.
        capture()
    assert any("everything is as before" in note for note in met.value.__notes__)
    before.check()
    refuse[0] = False
    assert capture()(x, y).isfinite()


def test_state_ends_as_the_first_step_finds_it(device):
    """As torch's own lazy initialisation leaves it, optimizer by optimizer."""
    flags = {"capturable": True} if device == "cuda" else {}
    kinds = {
        "SGD": {"momentum": 0.9},
        "Adadelta": flags,
        "Adagrad": {"fused": True, "initial_accumulator_value": 0.25},
        "Adam": {"fused": True, "capturable": True, "amsgrad": True},
        "AdamW": {"fused": True, "capturable": True},
        "RMSprop": {"momentum": 0.9, "centered": True, **flags},
        "Rprop": flags,
    }
    if device == "cuda":
        kinds |= dict.fromkeys(("Adamax", "ASGD", "NAdam", "RAdam"), flags)
        if not takes_fused_steps("Adagrad", torch.device("cuda")):
            del kinds["Adagrad"]
    for name, options in kinds.items():
        model = nn.Linear(4, 2).to(device)
        twin = nn.Linear(4, 2).to(device)
        made, reference = (
            getattr(optim, name)(one.parameters(), lr=0.03, **options) for one in (model, twin)
        )
        x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
        CudaGraphAdaptationStep.capture(model, made, x, y, mse, device=device)
        mse(twin(x), y).backward()
        if name != "SGD":  # Its first step makes the momentum.
            lists = len(inspect.signature(reference._init_group).parameters) - 1
            reference._init_group(reference.param_groups[0], *[[] for _ in range(lists)])
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            expected = reference.state[other]
            if name == "SGD":
                expected = {"momentum_buffer": torch.zeros_like(other)}
            assert made.state[one].keys() == expected.keys(), name
            for key, value in expected.items():
                assert torch.equal(made.state[one][key], value), (name, key)
                assert made.state[one][key].dtype == value.dtype
