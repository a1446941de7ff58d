"""Graphed callables beside autocast, torch.compile and torch.func."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import tensorplay_torch as tp

from .callables import leaf, mlp, rand

# Autocast


def amp(device, **options):
    return torch.autocast(device, torch.bfloat16, **options)


@pytest.mark.parametrize("cache", [True, False])
def test_autocast_inside_the_callable(device, twins, cache):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(device)

        def forward(self, x):
            with amp(x.device.type, cache_enabled=cache):
                return self.body(x) + self.body(x * 2)

    pair = twins(Module(), leaf(device))
    for _ in range(3):
        pair.step(leaf(device))
        for module in pair.modules():
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)


@pytest.mark.parametrize("cache", [True, False])
def test_autocast_around_the_callable(device, cache):
    """Torch issue 71631: a cached cast of a weight outlives the weight's next update."""
    eager = nn.ModuleList([mlp(device), mlp(device)])
    eager[1][0].weight = eager[0][0].weight
    graphed = copy.deepcopy(eager)
    with amp(device, cache_enabled=cache):
        graphed[0](rand(device, 6, 4))
        tp.make_graphed_callables(tuple(graphed), ((leaf(device),), (leaf(device),)))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, graphed)]
    for _ in range(3):
        x = rand(device, 6, 4)
        for n in range(2):
            losses = []
            for module, optimizer in zip((eager, graphed), optimizers, strict=True):
                optimizer.zero_grad()
                with amp(device, cache_enabled=cache):
                    losses.append(module[n](x.clone().requires_grad_()).float().square().mean())
                losses[-1].backward()
                optimizer.step()
            assert torch.equal(*losses)
        for p, q in zip(eager.parameters(), graphed.parameters(), strict=True):
            assert torch.equal(p, q)
    assert all(module.forward.counts.eager == 0 for module in graphed)


def test_autocast_is_compared_at_every_call(device):
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),))
    with (
        amp(device),
        pytest.raises(
            tp.SignatureMismatch, match=rf"autocast on {device}: captured off, got torch"
        ),
    ):
        module(leaf(device))
    with torch.autocast(device, torch.bfloat16, enabled=False):
        module(leaf(device))
    other = mlp(device)
    with amp(device):
        tp.make_graphed_callables(other, (leaf(device),))
    with pytest.raises(tp.SignatureMismatch, match=r"captured torch\.bfloat16, got off"):
        other(leaf(device))
    with (
        torch.autocast(device, torch.float16),
        pytest.raises(tp.SignatureMismatch, match=r"got torch\.float16"),
    ):
        other(leaf(device))


def test_a_backward_under_autocast_is_refused(device):
    module = mlp(device)
    with amp(device):
        tp.make_graphed_callables(module, (leaf(device),))
        loss = module(leaf(device)).float().sum()
        with pytest.raises(tp.GraphStateError, match="autocast is on"):
            loss.backward()
    loss.backward()


# torch.compile


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_region_with_graphs_of_its_own_is_refused(device):
    inner = mlp(device)
    for compiled in (
        torch.compile(inner, mode="reduce-overhead"),
        torch.compile(inner, options={"triton.cudagraphs": True}),
        torch.compile(inner, backend="cudagraphs"),
        torch.compile(lambda x: inner(x), mode="reduce-overhead"),
        nn.Sequential(torch.compile(inner, mode="max-autotune")),
    ):
        with pytest.raises(tp.CaptureError, match="CUDA graphs of its own"):
            tp.make_graphed_callables(compiled, (leaf(device),))
    inplace = mlp(device)
    inplace.compile()
    with pytest.raises(tp.CaptureError, match=r"module.compile\(\)"):
        tp.make_graphed_callables(inplace, (leaf(device),))


@pytest.mark.gpu
def test_a_compiled_region_is_right_after_warm_up(twins):
    module = nn.Sequential(torch.compile(mlp("cuda")), nn.Linear(4, 4).cuda())
    x = leaf("cuda")
    wanted = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    tp.make_graphed_callables(module, (x,))
    for _ in range(2):
        found = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)
    tp.release(module)
    x = leaf("cuda")
    torch.testing.assert_close(module(x), module[1](module[0]._orig_mod(x)))


def test_a_compiled_region_on_the_cpu_is_refused_by_name():
    module = nn.Sequential(torch.compile(mlp("cpu"), backend="eager"))
    with pytest.raises(tp.OperationRefused, match="compile"):
        tp.make_graphed_callables(module, (leaf("cpu"),))


def test_torch_compile_runs_a_graphed_callable_as_it_is(device):
    inner = mlp(device)
    x = leaf(device)
    tp.make_graphed_callables(inner, (x,))
    whole = torch.compile(nn.Sequential(nn.Identity(), inner), backend="eager")
    expected = copy.deepcopy(inner)(x)
    for n in range(1, 3):
        assert torch.equal(whole(x), expected)
        assert inner.forward.counts.replayed == n


# torch.func


def test_transforms_run_without_graphs(device):
    module = mlp(device)
    x = rand(device, 6, 4)
    graphed = tp.make_graphed_callables(lambda x: module(x), (x[0],))
    assert torch.equal(torch.func.vmap(graphed)(x), torch.func.vmap(module)(x))
    found = torch.func.grad(lambda one: graphed(one).sum())(x[0])
    assert torch.equal(found, torch.func.grad(lambda one: module(one).sum())(x[0]))
    assert graphed.graphed.counts.replayed == 0


# torch's own forward derivatives are scripted.
@pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")
@pytest.mark.parametrize("grad", [True, False])
def test_differentiating_forward_runs_without_graphs(device, grad):
    """A replay would hand back values without their tangents."""
    module, x, tangent = mlp(device), rand(device, 6, 4), rand(device, 6, 4)
    graphed = tp.make_graphed_callables(lambda x: module(x), (x,))
    found = []
    for call in (graphed, module):
        with forward_ad.dual_level(), torch.set_grad_enabled(grad):
            found.append(forward_ad.unpack_dual(call(forward_ad.make_dual(x, tangent))))
    for ours, wanted in zip(*found, strict=True):
        assert torch.equal(ours, wanted)
    assert graphed.graphed.counts.replayed == 0
    with forward_ad.dual_level(), pytest.raises(tp.GraphStateError, match="differentiates forward"):
        tp.make_graphed_callables(mlp(device), (x,))


def test_graphing_inside_a_capture_or_a_transform_is_refused(device):
    x = rand(device, 6, 4)
    with torch.no_grad(), pytest.raises(tp.GraphStateError, match="capturing already"):
        g = tp.CUDAGraph(device=device)
        with tp.graph(g):
            tp.make_graphed_callables(torch.relu, (x,))
    module = mlp(device)

    def work(x):
        return tp.make_graphed_callables(module, (torch.ones(6, 4, device=device),))(x)

    with pytest.raises(tp.GraphStateError, match=r"torch.func transform"):
        torch.func.vmap(work)(torch.ones(2, 6, 4, device=device))
    assert "forward" not in vars(module)


def test_functional_call_with_other_parameters_is_noticed(device):
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),))
    others = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            module(leaf(device))
            with pytest.raises(tp.StaleGraph, match="was replaced"):
                torch.func.functional_call(module, others, (leaf(device),))
