"""Graphed callables beside the rest of torch: autocast, compile, data parallelism, transforms."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from torch import distributed, nn

import tensorplay_torch as tp


def rand(device, *shape, **options):
    return torch.randn(*shape, device=device, **options)


def leaf(device, *shape):
    return rand(device, *(shape or (6, 4)), requires_grad=True)


def mlp(device):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)


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


# What is not plain dense memory


def test_parameters_that_are_not_plain_dense_tensors_are_refused(device):
    class Mine(nn.Parameter):
        pass

    for parameter, met in (
        (nn.Parameter(torch.eye(4).to_sparse()), "is sparse_coo, not strided"),
        (Mine(torch.eye(4)), r"is a .*Mine, a tensor that dispatches by itself"),
    ):
        module = nn.Linear(4, 4)
        module.weight = parameter
        with pytest.raises(tp.CaptureError, match=f"weight {met}"):
            tp.make_graphed_callables(module, (leaf("cpu"),))


@pytest.mark.filterwarnings("ignore")
def test_quantized_modules_are_refused():
    module = nn.Sequential(torch.ao.nn.quantized.dynamic.Linear(4, 4))
    with pytest.raises(tp.CaptureError, match=r"0 \(Linear\) is quantized"):
        tp.make_graphed_callables(module, (leaf("cpu"),))


@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_refused():
    module = torch.jit.script(nn.Linear(4, 4))
    with pytest.raises(tp.CaptureError, match="is TorchScript"):
        tp.make_graphed_callables(module, (leaf("cpu"),))


# torch.distributed, in one process


@pytest.fixture
def group(device):
    if not distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    backend = "nccl" if device == "cuda" else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def ids(device):
    return [torch.cuda.current_device()] if device == "cuda" else None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sections_graphed_before_ddp_train_as_eager(device, group):
    eager = nn.Sequential(mlp(device), nn.Linear(4, 4).to(device))
    graphed = copy.deepcopy(eager)
    tp.make_graphed_callables(graphed[0], (leaf(device),))
    parallel = [
        nn.parallel.DistributedDataParallel(m, device_ids=ids(device)) for m in (eager, graphed)
    ]
    for _ in range(4):
        x = rand(device, 6, 4)
        for module in parallel:
            module.zero_grad()
            module(x.clone().requires_grad_()).square().sum().backward()
        for p, q in zip(eager.parameters(), graphed.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
    assert graphed[0].forward.counts == (4, 0, 1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ddp_itself_needs_eleven_warm_ups(device, group):
    """Torch issue 89546."""
    eager = mlp(device)
    module = nn.parallel.DistributedDataParallel(copy.deepcopy(eager), device_ids=ids(device))
    for warmup in (3, 10):
        with pytest.raises(tp.ArgumentError, match="num_warmup_iters=11"):
            tp.make_graphed_callables(module, (leaf(device),), num_warmup_iters=warmup)
    with pytest.raises(tp.ArgumentError, match="reducer would see no gradient"):
        tp.make_graphed_callables(
            module, (leaf(device),), num_warmup_iters=11, param_grads="in_graph"
        )
    assert tp.make_graphed_callables(module, (leaf(device),), num_warmup_iters=11) is module
    for _ in range(3):
        x = leaf(device)
        assert torch.equal(module(x), eager(x))
        module.zero_grad()
        eager.zero_grad()
        module(x).square().sum().backward()
        eager(x).square().sum().backward()
        for p, q in zip(eager.parameters(), module.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
    assert module.module.forward.counts.eager == 0
    assert tp.release(module) is module
    assert "forward" not in vars(module.module)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ddp_inside_another_callable_is_refused(device, group):
    module = nn.Sequential(nn.parallel.DistributedDataParallel(mlp(device), device_ids=ids(device)))
    with pytest.raises(tp.CaptureError, match="DistributedDataParallel inside"):
        tp.make_graphed_callables(module, (leaf(device),), num_warmup_iters=11)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gradients_added_in_the_graph_are_refused_under_ddp(device, group):
    section = mlp(device)
    tp.make_graphed_callables(section, (leaf(device),), param_grads="in_graph")
    module = nn.parallel.DistributedDataParallel(
        nn.Sequential(section, nn.Linear(4, 4).to(device)), device_ids=ids(device)
    )
    with pytest.raises(tp.GraphStateError, match="part of a DistributedDataParallel"):
        module(leaf(device))


@pytest.mark.filterwarnings("ignore")
def test_fsdp_and_dtensor_are_refused(device, group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = init_device_mesh(device, (1,))
    sharded = nn.Sequential(mlp(device))
    fully_shard(sharded[0], mesh=mesh)
    with pytest.raises(tp.CaptureError, match=r"0 \(FSDPSequential\) is sharded by FSDP"):
        tp.make_graphed_callables(sharded, (leaf(device),))
    module = nn.Linear(4, 4).to(device)
    module.weight = nn.Parameter(distribute_tensor(module.weight.detach(), mesh, [Replicate()]))
    with pytest.raises(tp.CaptureError, match="weight is a DTensor"):
        tp.make_graphed_callables(module, (leaf(device),))


TWO_GPUS = """
import torch, torch.nn as nn, torch.distributed as dist, torch.multiprocessing as mp
import tensorplay_torch as tp

def run(rank, port):
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
    single = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
    single.load_state_dict(whole.state_dict())
    whole = nn.Sequential(whole, nn.Linear(8, 4).cuda())
    head = nn.Linear(8, 4).cuda()
    head.load_state_dict(whole[1].state_dict())
    tp.make_graphed_callables(
        whole[0], (torch.randn(5, 8, device="cuda", requires_grad=True),), num_warmup_iters=11
    )
    model = nn.parallel.DistributedDataParallel(whole, device_ids=[rank])
    for step in range(5):
        torch.manual_seed(step)
        both = torch.randn(2, 5, 8, device="cuda")
        model.zero_grad()
        model(both[rank].clone().requires_grad_()).square().mean().backward()
        single.zero_grad(), head.zero_grad()
        sum(head(single(part)).square().mean() / 2 for part in both).backward()
        for p, q in zip(whole.parameters(), [*single.parameters(), *head.parameters()]):
            torch.testing.assert_close(p.grad, q.grad)
    assert whole[0].forward.counts.replayed == 5
    tp.close_all()
    dist.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(run, (port,), nprocs=2)
"""


@pytest.mark.gpu
@pytest.mark.slow
def test_a_section_under_ddp_on_two_gpus(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    script = tmp_path / "two_gpus.py"
    script.write_text(textwrap.dedent(TWO_GPUS))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Threads and streams


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
        assert all(map(torch.equal, one, other))


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
    assert all(map(torch.equal, found, wanted))
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
