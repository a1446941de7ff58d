"""Whole training runs over graphed callables: equal to eager ones, step for step."""

from __future__ import annotations

import copy
import gc
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

pytestmark = pytest.mark.usefixtures("exact")


class First(nn.Module):
    """Takes a dict, of which one entry may have no part."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.BatchNorm1d(16))

    def forward(self, batch):
        return self.net(batch["x"])


class Second(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 4), nn.Dropout(0.2))

    def forward(self, x):
        return self.net(x)


class Gather(nn.Module):
    """Has no parameters and returns a dict."""

    def forward(self, x):
        rows = torch.arange(x.shape[0], device=x.device).view(-1, 1).expand(x.shape)
        return {"output": torch.gather(x, 0, rows)}


def mse(x, y):
    return nn.functional.mse_loss(x, y)


@pytest.mark.parametrize("param_grads", ["autograd", "in_graph"])
@pytest.mark.parametrize("allow_unused_input", [False, True])
@pytest.mark.parametrize("cache", [None, True, False], ids=["no amp", "amp cached", "amp uncached"])
def test_sections_functions_and_a_loss(device, cache, allow_unused_input, param_grads):
    """As torch's own test of make_graphed_callables, where a cache of casts must be refused."""
    torch.manual_seed(5)

    def amp():
        if cache is None:
            return nullcontext()
        return torch.autocast(device, torch.bfloat16, cache_enabled=cache)

    eager = nn.ModuleList([First(), Second(), Gather()]).to(device)
    graphed = copy.deepcopy(eager)
    data = [torch.randn(12, 8, device=device) for _ in range(6)]
    targets = [torch.randn(12, 4, device=device) for _ in range(6)]

    def batch(x):
        return (
            {"x": x, "unused": x.new_ones(3, requires_grad=True)}
            if allow_unused_input
            else {"x": x}
        )

    def chain(first, second, last, relu, loss, x, y):
        with amp():
            h = second(first(batch(x)))
            h = relu(last(h)["output"])
            return loss(h.float(), y)

    def like(tensor):
        return torch.randn_like(tensor).requires_grad_()

    with amp():
        hidden = like(eager[0](batch(data[0])).detach())
        out = like(eager[1](hidden).detach())
    eager.load_state_dict(graphed.state_dict())
    with amp():
        calls = tp.make_graphed_callables(
            (*graphed, torch.relu, mse),
            (
                (batch(data[0]),),
                (hidden,),
                (out,),
                (out,),
                (like(out.float()), targets[0]),
            ),
            allow_unused_input=allow_unused_input,
            param_grads=param_grads,
        )
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (eager, graphed)]
    for x, y in zip(data, targets, strict=True):
        losses = []
        for parts, optimizer in zip(((*eager, torch.relu, mse), calls), optimizers, strict=True):
            torch.manual_seed(7)
            optimizer.zero_grad()
            loss = chain(*parts, x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        assert torch.equal(*losses)
        for one, other in zip(
            eager.state_dict().values(), graphed.state_dict().values(), strict=True
        ):
            assert torch.equal(one, other)
    assert all(module.forward.counts == (6, 0, 1) for module in graphed)
    eager.eval()
    graphed.eval()
    torch.manual_seed(1)
    wanted = chain(*eager, torch.relu, mse, data[0], targets[0])
    torch.manual_seed(1)
    assert torch.equal(chain(*graphed, torch.relu, mse, data[0], targets[0]), wanted)
    assert graphed[0].forward.counts == (6, 1, 1)


def test_a_gradient_scaler(device):
    eager = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    graphed = copy.deepcopy(eager)
    tp.make_graphed_callables(graphed, (torch.randn(4, 8, device=device),))
    runs = []
    for module in (eager, graphed):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**8, growth_interval=2)
        torch.manual_seed(3)
        for n in range(6):
            x = torch.randn(4, 8, device=device)
            if n == 3:
                x[0, 0] = float("inf")
            optimizer.zero_grad()
            scaler.scale(module(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        runs.append((scaler.get_scale(), [p.detach() for p in module.parameters()]))
    assert runs[0][0] == runs[1][0]
    for one, other in zip(runs[0][1], runs[1][1], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("recurrent", [nn.GRU, nn.RNN, nn.LSTM])
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_recurrent_layers_train(device, twins, recurrent):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = recurrent(4, 5, num_layers=2)

        def forward(self, x):
            return self.cell(x)[0]

    with torch.backends.mkldnn.flags(enabled=False):
        pair = twins(Model().to(device), torch.randn(3, 2, 4, device=device, requires_grad=True))
        for _ in range(3):
            pair.step(torch.randn(3, 2, 4, device=device, requires_grad=True))


def test_attention_trains_and_infers(device, twins):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).to(device)
    pair = twins(layer, torch.randn(2, 5, 8, device=device, requires_grad=True))
    for _ in range(2):
        pair.step(torch.randn(2, 5, 8, device=device, requires_grad=True))
        with torch.no_grad():
            pair.call(torch.randn(2, 5, 8, device=device))


def test_a_teacher_and_a_student(device):
    """A frozen model replayed without grad between the student's forward and backward."""
    student = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).to(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    eager = copy.deepcopy(student)
    sample = torch.randn(3, 4, device=device)
    tp.make_graphed_callables((student, teacher), ((sample,), (sample,)))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, student)]
    guide = copy.deepcopy(teacher)
    for _ in range(4):
        x = torch.randn(3, 4, device=device)
        for module, other, optimizer in zip(
            (eager, student), (guide, teacher), optimizers, strict=True
        ):
            optimizer.zero_grad()
            y = module(x)
            with torch.no_grad():
                z = other(x)
            nn.functional.mse_loss(y, z + 1).backward()
            optimizer.step()
        for p, q in zip(eager.parameters(), student.parameters(), strict=True):
            assert torch.equal(p, q)


@pytest.mark.gpu
def test_memory_comes_back_after_a_failed_capture():
    """Torch issues 188439 and 190348: a failed capture leaked its pool for the process's life."""

    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))

        def forward(self, x):
            y = self.layers(x)
            return y * y.sum().item()

    def once():
        with pytest.raises((tp.CaptureError, RuntimeError)):
            tp.make_graphed_callables(
                Failing().cuda(), (torch.randn(256, 1024, device="cuda", requires_grad=True),)
            )
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    once()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        once()
    assert torch.cuda.memory_reserved() <= before
    module = nn.Linear(8, 8).cuda()
    tp.make_graphed_callables(module, (torch.randn(4, 8, device="cuda"),))


@pytest.mark.gpu
def test_many_captures_leave_no_workspaces_behind():
    """Torch PR 83461: library workspaces leaked with each capture."""
    module = nn.Linear(256, 256).cuda()
    x = torch.randn(64, 256, device="cuda")

    def once():
        tp.make_graphed_callables(module, (x,))
        module(x).sum().backward()
        tp.release(module)

    for _ in range(3):
        once()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(50):
        once()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # Of this process: other tests may run beside it on the same device.
    assert torch.cuda.memory_reserved() - before < 100 << 20
