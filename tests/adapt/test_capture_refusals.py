"""What a capture refuses or warns of, by name: what a replay would repeat, or never do."""

from __future__ import annotations

import copy
import random
import warnings

import numpy
import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import CaptureError, OperationRefused
from tests.equality import assert_all_equal

from .everything import Everything, training
from .steps import mse


def test_attributes_that_only_the_first_call_sets_are_fine(device):
    class Lazy(nn.Linear):
        table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(4.0, device=x.device)
            return super().forward(x * self.table)

    model = Lazy(4, 2).to(device)
    twin = copy.deepcopy(model)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    step = CudaGraphAdaptationStep.capture(
        model, optim.SGD(model.parameters(), lr=0.1), x, y, mse, device=device
    )
    assert model.table is None
    eager = optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        eager.zero_grad()
        expected = mse(twin(x), y)
        expected.backward()
        eager.step()
        assert torch.equal(step(x, y), expected)
    assert_all_equal(model.state_dict(), twin.state_dict())
    assert step.verify(3).equal


def test_attributes_that_every_call_sets_are_refused(device):
    class Remembering(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    model = Remembering(4, 2).to(device)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    before = Everything(model, optimizer)
    with pytest.raises(OperationRefused, match="it sets last in each call"):
        CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device)
    before.check()


def test_a_buffer_that_is_bound_anew_is_refused(device):
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            return super().forward(x)

    model = Counting().to(device)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    with pytest.raises(OperationRefused, match="count"):
        CudaGraphAdaptationStep.capture(
            model, optim.SGD(model.parameters(), lr=0.1), x, y, mse, device=device
        )
    assert model.count.item() == 0


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand], ids=["random", "numpy"])
def test_host_randomness_is_refused(device, draw):
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) * float(draw())

    model = Noisy(4, 2).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    before = Everything(model, optimizer)
    with pytest.raises(OperationRefused, match="a replay would repeat the draw"):
        CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device)
    before.check()


@pytest.mark.gpu
def test_randomness_of_the_cpu_is_refused_on_a_gpu():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) * torch.rand(()).item()

    model = Noisy(4, 2).cuda()
    x, y = torch.randn(6, 4, device="cuda"), torch.randn(6, 2, device="cuda")
    with pytest.raises(OperationRefused, match="torch's generator of the CPU"):
        CudaGraphAdaptationStep.capture(model, optim.SGD(model.parameters(), lr=0.1), x, y, mse)


def test_values_read_back_are_refused_by_name(device):
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x[:, :2]

    model = Branching(4, 2).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.ones(6, 4, device=device), torch.randn(6, 2, device=device)
    before = Everything(model, optimizer)
    with pytest.raises(OperationRefused) as met:
        CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device)
    assert met.value.where == f"{__file__}:{Branching.forward.__code__.co_firstlineno + 1}"
    before.check()


def test_batch_norm_with_cumulative_average_is_refused(device):
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, momentum=None)).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    with pytest.raises(OperationRefused):
        CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device)
    assert model[1].num_batches_tracked.item() == 0


def test_parameters_without_gradient_are_named(device):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return self.used(x)

    model = Half().to(device)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    with pytest.warns(RuntimeWarning, match=r"reaches unused\.weight, unused\.bias"):
        step = CudaGraphAdaptationStep.capture(
            model, optim.SGD(model.parameters(), lr=0.1), x, y, mse, device=device
        )
    step(x, y)
    assert sorted(step.gradients) == ["used.bias", "used.weight"]


def test_step_hooks_of_the_optimizer_are_named():
    model = nn.Linear(4, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.warns(RuntimeWarning, match="SGD has step hooks"):
        CudaGraphAdaptationStep.capture(
            model, optimizer, torch.randn(6, 4), torch.randn(6, 2), mse, device="cpu"
        )


class Custom(optim.Optimizer):
    """Somebody's own: sign descent with a counter that it makes in its first step."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    state = self.state[one]
                    if not state:
                        state["seen"] = torch.zeros((), device=one.device)
                    state["seen"].add_(1)
                    one.sub_(one.grad.sign(), alpha=group["lr"])


def test_somebodys_own_optimizer_is_captured_once_its_state_is_there(twins, device):
    with pytest.raises(CaptureError, match=r"state 'seen'[^\n]*\nTake one step eagerly"):
        twins(lambda parameters: Custom(parameters, 0.01), device=device)

    def schedule(number, optimizer):
        optimizer.param_groups[0]["lr"] = 0.01 / (number + 1)

    twins(lambda parameters: Custom(parameters, 0.01), device=device, warm=1).run(change=schedule)


def test_nothing_warns(device):
    model, optimizer, x, y = training(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = CudaGraphAdaptationStep.capture(model, optimizer, x, y, mse, device=device)
        step(x, y)
