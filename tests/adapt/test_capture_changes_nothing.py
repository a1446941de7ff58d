"""Capture leaves memory, bindings, random states and modes as they were, also when it fails."""

from __future__ import annotations

import gc
import inspect
import random
import warnings

import numpy
import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_adapt.optimizers import takes_fused_steps
from tensorplay_core.errors import CaptureError, CaptureInvalidated, OperationRefused
from tensorplay_torch import is_current_stream_capturing

mse = nn.functional.mse_loss


class Boom(Exception):
    pass


class Everything:
    """What a capture must leave alone, as it is now."""

    def __init__(self, model, optimizer, *, keep_keys=True):
        self.model, self.optimizer, self.keep_keys = model, optimizer, keep_keys
        self.tensors = [(one, one.data_ptr()) for one in model.state_dict(keep_vars=True).values()]
        self.values = [one.detach().clone() for one, _ in self.tensors]
        self.versions = [one._version for one, _ in self.tensors]
        self.grads = [
            (one, one.grad, None if one.grad is None else one.grad.clone())
            for one in model.parameters()
        ]
        self.modes = [module.training for module in model.modules()]
        self.state = {
            key: {
                name: (v, v.clone() if isinstance(v, torch.Tensor) else v) for name, v in s.items()
            }
            for key, s in optimizer.state.items()
        }
        self.groups = [dict(group) for group in optimizer.param_groups]
        self.random = self._random()
        self.torch = self._torch()
        self.attributes = [set(vars(module)) for module in model.modules()]

    def _random(self):
        states = [torch.get_rng_state(), random.getstate(), repr(numpy.random.get_state())]
        if torch.cuda.is_available():
            states.append(torch.cuda.get_rng_state())
        return states

    def _torch(self):
        facts = [
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_enabled("cuda"),
            torch.is_autocast_cache_enabled(),
            gc.isenabled(),
            is_current_stream_capturing(),
        ]
        if torch.cuda.is_available():
            facts += [torch.cuda.current_stream(), torch.cuda.current_device()]
        return facts

    def check(self):
        for (one, address), value, version in zip(
            self.tensors, self.values, self.versions, strict=True
        ):
            assert torch.equal(one, value)
            assert one.data_ptr() == address
            assert one._version == version
        for one, grad, value in self.grads:
            assert one.grad is grad
            assert grad is None or torch.equal(grad, value)
        assert [module.training for module in self.model.modules()] == self.modes
        assert [set(vars(module)) for module in self.model.modules()] == self.attributes
        if self.keep_keys:
            assert self.optimizer.state.keys() == self.state.keys()
        for key, entries in self.state.items():
            for name, (tensor, value) in entries.items():
                assert self.optimizer.state[key][name] is tensor
                assert not isinstance(tensor, torch.Tensor) or torch.equal(tensor, value)
        for group, before in zip(self.optimizer.param_groups, self.groups, strict=True):
            assert group.keys() == before.keys()
            assert all(group[name] is before[name] for name in before)
        for now, before in zip(self._random(), self.random, strict=True):
            same = torch.equal(now, before) if isinstance(now, torch.Tensor) else now == before
            assert same
        assert self._torch() == self.torch


def training(device, *, warm=False):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)
    ).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=0.1, fused=True, capturable=True)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    if warm:
        mse(model(x), y).backward()
        optimizer.step()
    return model, optimizer, x, y


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


def test_attributes_that_only_the_first_call_sets_are_fine(device):
    class Lazy(nn.Linear):
        table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(4.0, device=x.device)
            return super().forward(x * self.table)

    model = Lazy(4, 2).to(device)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 2, device=device)
    step = CudaGraphAdaptationStep.capture(
        model, optim.SGD(model.parameters(), lr=0.1), x, y, mse, device=device
    )
    assert model.table is None
    assert torch.equal(step(x, y), mse(model(x), y)) is False
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
    assert met.value.where.endswith(
        "test_capture_changes_nothing.py:" + met.value.where.split(":")[-1]
    )
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
