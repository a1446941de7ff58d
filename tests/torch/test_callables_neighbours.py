"""Graphed callables beside tensors that are not plain, and torch.distributed."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import distributed, nn

import tensorplay_torch as tp

from .callables import leaf, mlp, rand

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
        apart = [*single.parameters(), *head.parameters()]
        for p, q in zip(whole.parameters(), apart, strict=True):
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
