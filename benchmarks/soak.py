"""Does anything grow, does anything slip, over many thousand cycles? `nox -s soak`.

On a machine with a GPU on CUDA, else on the CPU with smaller counts. Each record's `ours` is what
must not be: MiB grown, or launches whose result was wrong.
"""

from __future__ import annotations

import gc
import os
import pathlib
import sys
from typing import Any

from record import MEBI, Record, at_most, cpu, record

NEEDS_GPU = False
BY_DEFAULT = False
INPUTS, SHAPE, SETS = 4, (64, 256), 7


def soak_cycles() -> list[Record]:
    """Capture, replay and reset, 10,000 times: memory stays as it was after the first hundred."""
    import torch

    import tensorplay_torch

    device, on_gpu = _device()
    cycles = 10_000 if on_gpu else 1_000
    x = torch.randn(SHAPE, device=device)
    weight = torch.randn(SHAPE[1], SHAPE[1], device=device)
    expected = torch.relu(x @ weight)
    samples: dict[str, list[float]] = {}
    for cycle in range(cycles + 1):
        if cycle >= 100 and cycle % 100 == 0:
            gc.collect()
            for kind, mebibytes in _memory(on_gpu).items():
                samples.setdefault(kind, []).append(mebibytes)
        g = tensorplay_torch.CUDAGraph(device=device)
        with tensorplay_torch.graph(g):
            result = torch.relu(x @ weight)
        g.replay()
        if not torch.equal(result, expected):
            raise RuntimeError(f"cycle {cycle} replayed something else than eager")
        del result
        g.reset()
    where = torch.cuda.get_device_name() if on_gpu else cpu()
    return [
        record(
            f"soak_cycles_{kind}",
            {"ours": max(abs(one - series[0]) for one in series)},
            unit="MiB",
            goals=[at_most(1, None)],
            note=f"{cycles} cycles of capture, replay and reset on {where}; the furthest from "
            f"{series[0]:.2f} MiB after the first hundred, sampled each hundred",
        )
        for kind, series in samples.items()
    ]


def soak_launches() -> list[Record]:
    """100,000 staged launches back to back, each with other sources, none with a wrong result."""
    import torch

    import tensorplay_torch

    device, on_gpu = _device()
    launches = 100_000 if on_gpu else 5_000
    factors = torch.arange(1.0, INPUTS + 1, device=device).reshape(INPUTS, 1, 1)

    def work(inputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(inputs).mul_(factors).sum(0)  # Swapped inputs give another sum.

    static = [torch.zeros(SHAPE, device=device) for _ in range(INPUTS)]
    sets = [[torch.randn(SHAPE, device=device) for _ in range(INPUTS)] for _ in range(SETS)]
    expected = [work(inputs) for inputs in sets]
    g = tensorplay_torch.CUDAGraph(device=device)
    with tensorplay_torch.graph(g):
        result = work(static)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for launch in range(launches):
        g.stage_and_launch(static, sets[launch % SETS])
        wrong += (result != expected[launch % SETS]).any()
    where = torch.cuda.get_device_name() if on_gpu else cpu()
    return [
        record(
            "soak_launches",
            {"ours": float(wrong.item())},
            unit="launches",
            goals=[at_most(0, None)],
            note=f"wrong of {launches} g.stage_and_launch with rotating sources, not waited for "
            f"one by one, on {where}",
        )
    ]


def _device() -> tuple[Any, bool]:
    import torch

    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        torch.set_num_threads(1)
    return torch.device("cuda" if on_gpu else "cpu"), on_gpu


def _memory(on_gpu: bool) -> dict[str, float]:
    import torch

    pages = int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    found = {"host": pages * os.sysconf("SC_PAGE_SIZE") / MEBI}
    if on_gpu:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found["device"] = (total - free) / MEBI
    return found


BENCHMARKS = (soak_cycles, soak_launches)

if __name__ == "__main__":
    import run

    sys.exit(run.main([*(one.__name__ for one in BENCHMARKS), *sys.argv[1:]]))
