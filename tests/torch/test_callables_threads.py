"""Graphed callables on several threads and streams; what memory they leave."""

from __future__ import annotations

import copy
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tests.equality import assert_all_equal

from .callables import leaf, mlp, rand


def test_threads_may_call_at_once(device):
    module = mlp(device)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (leaf(device),))
    with torch.no_grad():
        module(rand(device, 6, 4))
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(50):
            x = torch.randn(6, 4, generator=generator).to(device)
            with torch.no_grad():
                if not torch.equal(module(x), eager(x)):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert module.forward.counts.eager == 0


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_a_thread_that_never_used_the_device_may_call(device, grad):
    """CUDA ends a process whose thread sets a kernel before it has a context."""
    module = mlp(device)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (leaf(device),))
    x, found = leaf(device), []
    wanted = eager(x).detach()
    module(x)  # The first call goes another way.
    stream = nullcontext() if device == "cpu" else torch.cuda.stream(torch.cuda.Stream())

    def work():
        with torch.set_grad_enabled(grad), stream:
            found.append(module(x))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    if device != "cpu":
        torch.cuda.synchronize()
    assert_all_equal([one.detach() for one in found], [wanted, wanted])


@pytest.mark.gpu
def test_calls_on_changing_streams_are_ordered():
    """Each call writes buffers that the last one may still be reading on another stream."""
    width = 2048
    module = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).cuda()
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (leaf("cuda", 512, width),))
    streams = [torch.cuda.Stream() for _ in range(3)]
    xs = [leaf("cuda", 512, width) for _ in range(6)]
    wanted = [torch.autograd.grad(eager(x).square().sum(), [x, *eager.parameters()]) for x in xs]
    torch.cuda.synchronize()
    found = []
    for n, x in enumerate(xs):
        with torch.cuda.stream(streams[n % 3]):
            found.append(torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()]))
    torch.cuda.synchronize()
    for one, other in zip(found, wanted, strict=True):
        assert_all_equal(one, other)


@pytest.mark.gpu
def test_the_current_stream_is_restored_whatever_happens():
    """B2: torch's version leaves the capture stream current when a capture fails."""
    before = torch.cuda.current_stream()
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        inside = torch.cuda.current_stream()
        tp.make_graphed_callables(mlp("cuda"), (leaf("cuda"),))
        assert torch.cuda.current_stream() == inside
        with pytest.raises((tp.CaptureError, RuntimeError)):
            tp.make_graphed_callables(lambda x: x * x.sum().item(), (leaf("cuda"),))
        assert torch.cuda.current_stream() == inside
    assert torch.cuda.current_stream() == before


@pytest.mark.gpu
@pytest.mark.parametrize("keep", ["loss", "ddp-like"])
def test_accumulators_that_remember_another_stream(keep):
    """Torch issue 15623 and others: AccumulateGrad nodes made on the default stream, kept alive."""
    module = mlp("cuda")
    x = leaf("cuda")
    if keep == "loss":
        kept = module(x).square().sum()
    else:
        kept = [p.view_as(p).grad_fn.next_functions[0][0] for p in module.parameters()]
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (x,))
    found = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    wanted = torch.autograd.grad(eager(x).square().sum(), [x, *eager.parameters()])
    assert_all_equal(found, wanted)
    module(x).square().sum().backward()
    assert torch.equal(module[0].weight.grad, wanted[1])
    del kept


@pytest.mark.gpu
def test_memory_comes_back_after_release():
    """B18 and torch issue 83490."""

    def once():
        module = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
        tp.make_graphed_callables(module, (leaf("cuda", 256, 1024),))
        module(leaf("cuda", 256, 1024)).sum().backward()
        with torch.no_grad():
            module(rand("cuda", 256, 1024))
        tp.release(module)

    once()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(5):
        once()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before
