"""What torch's own tests of CUDA graphs ask of pools and optimizers."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tests.equality import assert_all_equal

from .checklist import aside, captured, gpu

# Pools


@gpu
@pytest.mark.parametrize("how", ["own", "handle", "graph"])
def test_a_shared_pool_takes_less_from_the_device(how):
    x = torch.ones(1 << 19, device="cuda")
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    pool = tp.graph_pool_handle() if how == "handle" else None
    first, a = captured(lambda: (x + 1).sum(), "cuda", pool=pool)
    shared = {"own": None, "handle": pool, "graph": first}[how]
    one = torch.cuda.memory_reserved() - before
    second, b = captured(lambda: (x + 2).sum(), "cuda", pool=shared)
    both = torch.cuda.memory_reserved() - before
    for made, out, value in ((first, a, 2.0), (second, b, 3.0)):
        made.replay()
        assert out.item() == value * x.numel()
    assert both == one if how != "own" else both >= one


def test_three_graphs_of_one_pool_are_right_in_the_order_of_their_capture(device):
    size, pool = 1 << 10, tp.graph_pool_handle(device)
    x = torch.ones(size, device=device)
    graphs, outputs, source = [], [], x
    for step in range(3):
        made = tp.CUDAGraph(device=device)
        with tp.graph(made, pool=pool):
            source = (source * 2 + step).clone()
        graphs.append(made)
        outputs.append(source)
    for value in (1.0, 3.0):
        x.fill_(value)
        for made in graphs:
            made.replay()
        a = value * 2
        b = a * 2 + 1
        assert [float(out[0]) for out in outputs] == [a, b, b * 2 + 2]


@gpu
def test_memory_of_every_stream_in_a_capture_is_its_pools():
    x = torch.ones(1 << 20, device="cuda")

    def work():
        side = torch.cuda.Stream()
        a = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = x + 2
        torch.cuda.current_stream().wait_stream(side)
        return a, b

    made, (a, b) = captured(work, "cuda")
    assert made.memory.allocated_bytes >= a.nbytes + b.nbytes
    made.replay()
    assert (a[0].item(), b[0].item()) == (2.0, 3.0)


@gpu
def test_a_tensor_that_another_stream_uses_may_be_dropped_in_the_capture():
    x = torch.ones(1 << 20, device="cuda")

    def work():
        side, total = torch.cuda.Stream(), torch.zeros_like(x)
        for step in range(4):
            y = x + step
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                total.add_(y)
            y.record_stream(side)
            del y
        torch.cuda.current_stream().wait_stream(side)
        return total

    made, total = captured(work, "cuda")
    for _ in range(2):
        made.replay()
        assert total.unique().tolist() == [4 + 6.0]


# Optimizers


def optimizers():
    """Every optimizer of torch's that says it can be captured, each way that it has."""
    always = {
        torch.optim.Adadelta: {},
        torch.optim.ASGD: {},
        torch.optim.Adam: {"amsgrad": True},
        torch.optim.AdamW: {},
        torch.optim.Adamax: {},
        torch.optim.NAdam: {},
        torch.optim.RAdam: {},
        torch.optim.RMSprop: {"momentum": 0.5},
        torch.optim.Rprop: {},
    }
    for kind, options in always.items():
        for foreach in (False, True):
            yield kind, {"capturable": True, "foreach": foreach, **options}
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        yield kind, {"capturable": True, "fused": True}
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        yield torch.optim.SGD, {"momentum": 0.9, **options}


def trained(kind, options, *, replayed: int, device: str) -> list[torch.Tensor]:
    torch.manual_seed(3)
    parameters = [nn.Parameter(torch.randn(5, device=device)) for _ in range(2)]
    for place, one in enumerate(parameters):
        one.grad = torch.full_like(one, 0.1 * (place + 1))
    optimizer = kind(parameters, lr=0.1, **options)
    if device == "cuda":
        aside(optimizer.step)
    else:
        optimizer.step()
    if replayed:
        made, _ = captured(optimizer.step, device)
        for _ in range(replayed):
            made.replay()
    else:
        for _ in range(3):
            optimizer.step()
    return [one.detach() for one in parameters]


@gpu
@pytest.mark.parametrize(
    ("kind", "options"),
    list(optimizers()),
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(map(str, value)),
)
def test_an_optimizers_steps_are_replayed(kind, options):
    eager = trained(kind, options, replayed=0, device="cuda")
    graphed = trained(kind, options, replayed=3, device="cuda")
    assert_all_equal(graphed, eager)


@gpu
def test_one_parameter_group_that_counts_on_the_host_is_refused():
    parameters = [nn.Parameter(torch.ones(3, device="cuda")) for _ in range(2)]
    for one in parameters:
        one.grad = torch.ones_like(one)
    groups = [
        {"params": [parameters[0]], "capturable": True},
        {"params": [parameters[1]], "capturable": False},
    ]
    optimizer = torch.optim.Adam(groups, foreach=False)
    aside(optimizer.step)
    before = [one.detach().clone() for one in parameters]
    with pytest.raises((tp.OperationRefused, RuntimeError), match="apturable"):
        captured(optimizer.step, "cuda")
    torch.cuda.synchronize()
    assert_all_equal(parameters, before)


@gpu
def test_a_step_with_scaled_gradients_is_replayed():
    def run(replayed):
        torch.manual_seed(0)
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True, capturable=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=2)
        x = torch.randn(4, 8, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.float16, cache_enabled=False):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        aside(step)
        if replayed:
            made, _ = captured(step, "cuda")
            for _ in range(5):
                made.replay()
        else:
            for _ in range(5):
                step()
        return [*(p.detach() for p in model.parameters()), scaler._scale]

    assert_all_equal(run(True), run(False))
