"""A captured step under DistributedDataParallel, one process a GPU: `python ddp_two_gpus.py [N]`.

Each rank trains an eager replica and a captured one on its own shard and compares them bit for
bit, times both beside the hand-captured idiom, and destroys the process group with the graph still
alive. The parent prints one line of JSON and ends with status 0 if all is well.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, LAYERS, BATCH = 50, 256, 8, 64


def model(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    layers = (part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    return nn.Sequential(*layers).to(device)


class Training:
    """A replica with its optimizer, made on a side stream as captures of DDP want."""

    def __init__(self, device: torch.device) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.module = DistributedDataParallel(model(device), device_ids=[device.index])
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=1e-3, fused=True, capturable=True
        )

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.module(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def tensors(self) -> list[torch.Tensor]:
        state = [value for one in self.optimizer.state.values() for value in one.values()]
        return [*self.module.parameters(), *state]


def by_hand(training: Training, x: torch.Tensor, y: torch.Tensor) -> tuple[object, object]:
    """The idiom of torch's notes: warm up, capture, then copy, replay, clone."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(11):
            training.step(x, y)
    torch.cuda.current_stream().wait_stream(side)
    training.optimizer.zero_grad(set_to_none=True)
    static, graph = (x.clone(), y.clone()), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        loss = training.step(*static)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        static[0].copy_(x)
        static[1].copy_(y)
        graph.replay()
        return loss.clone()

    return call, graph


def host_microseconds(step: object, x: torch.Tensor, y: torch.Tensor) -> float:
    rounds = []
    for _ in range(15):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            step(x, y)  # type: ignore[operator]
        rounds.append((time.perf_counter() - began) / 20 * 1e6)
        torch.cuda.synchronize()
    return statistics.median(rounds)


def work(rank: int, world: int, store: str, out: str) -> None:
    from tensorplay_adapt import CudaGraphAdaptationStep

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=world, device_id=device
    )
    eager, ours = Training(device), Training(device)
    source = torch.Generator().manual_seed(rank)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        made = (torch.randn(BATCH, WIDTH, generator=source) for _ in range(2))
        x, y = (one.to(device) for one in made)
        return x, y

    began = time.perf_counter()
    step = CudaGraphAdaptationStep.capture(
        ours.module, ours.optimizer, *batch(), nn.functional.mse_loss
    )
    capture_seconds = time.perf_counter() - began
    losses = True
    for number in range(STEPS):
        rate = 1e-3 / (1 + number // 10)
        for training in (eager, ours):
            training.optimizer.param_groups[0]["lr"] = rate
        x, y = batch()
        losses &= torch.equal(step(x, y), eager.step(x, y))
    equal = all(
        torch.equal(one, other) for one, other in zip(ours.tensors(), eager.tensors(), strict=True)
    )
    replicas = [torch.empty_like(ours.tensors()[0]) for _ in range(world)]
    dist.all_gather(replicas, ours.tensors()[0].detach())
    alike = all(torch.equal(replicas[0], other) for other in replicas)

    hand = Training(device)
    idiom, graph = by_hand(hand, x, y)
    times = {
        "ours": host_microseconds(step, x, y),
        "idiom": host_microseconds(idiom, x, y),
        "eager": host_microseconds(eager.step, x, y),
    }
    graph.reset()  # type: ignore[attr-defined]
    del idiom, graph

    began = time.perf_counter()
    dist.destroy_process_group()  # With our graph alive: it is closed first.
    result = {
        "losses_equal": losses,
        "state_equal": equal,
        "replicas_equal": alike,
        "capture_seconds": capture_seconds,
        "microseconds": times,
        "destroy_seconds": time.perf_counter() - began,
    }
    pathlib.Path(out).write_text(json.dumps(result), encoding="utf-8")


def main() -> int:
    world = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as folder:
        outs = [f"{folder}/{rank}.json" for rank in range(world)]
        command = [sys.executable, __file__, "--rank"]
        ranks = [
            subprocess.Popen([*command, str(rank), str(world), f"{folder}/store", outs[rank]])
            for rank in range(world)
        ]
        deadline = time.monotonic() + 180
        try:
            codes = [rank.wait(max(1, deadline - time.monotonic())) for rank in ranks]
        except subprocess.TimeoutExpired:
            print(json.dumps({"error": "a rank did not end: the process group hangs"}))
            return 1
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            print(json.dumps({"error": f"exit statuses {codes}"}))
            return 1
        results = [json.loads(pathlib.Path(out).read_text(encoding="utf-8")) for out in outs]
    equal = all(
        one[name] for one in results for name in ("losses_equal", "state_equal", "replicas_equal")
    )
    print(json.dumps({"equal": equal, "world": world, "ranks": results}))
    return 0 if equal else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        work(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
    else:
        sys.exit(main())
