"""A training step on the CPU: replayed by the torch driver over the host driver, and eager."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from record import Record, cpu, faster, record
from timing import microseconds, statement

NEEDS_GPU = False
BATCH = 32
CODE = "x.copy_(next(inputs)); y.copy_(next(targets)); "


def host_step() -> list[Record]:
    """Forward, loss, backward and fused AdamW of small MLPs, batch 32, beside eager."""
    return [
        _step(depth, width, times)
        for depth, width, times in ((2, 64, 2), (2, 256, 1.3), (8, 256, 1))
    ]


def host_adapt() -> list[Record]:
    """The same steps by ``CudaGraphAdaptationStep``: checked batches, owned losses."""
    return [
        _adapt(depth, width, times)
        for depth, width, times in ((2, 64, 2), (2, 256, 1.3), (8, 256, 1))
    ]


def _adapt(depth: int, width: int, times: float) -> Record:
    import torch

    from tensorplay_adapt import CudaGraphAdaptationStep

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = (
        part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())
    )
    model = torch.nn.Sequential(*layers)
    ours, eager = (_Training(copy.deepcopy(model), width) for _ in range(2))
    step = CudaGraphAdaptationStep.capture(
        ours.model, ours.optimizer, ours.x, ours.y, torch.nn.functional.mse_loss, device="cpu"
    )
    data = [torch.randn(BATCH, width) for _ in range(6)]
    feeds = {
        label: {"inputs": itertools.cycle(data[::2]), "targets": itertools.cycle(data[1::2])}
        for label in ("ours", "eager")
    }
    contenders = {
        "ours": statement("step(next(inputs), next(targets))", step=step, **feeds["ours"]),
        "eager": statement(
            "training.x, training.y = next(inputs), next(targets); training.step()",
            training=eager,
            **feeds["eager"],
        ),
    }
    measured = microseconds(contenders, synchronize=lambda: None, calls=100, batches=1, rounds=15)
    pairs = zip(ours.model.parameters(), eager.model.parameters(), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise RuntimeError("the two trainings did not end with the same weights")
    return record(
        f"host_adapt_{depth}x{width}",
        measured,
        unit="µs",
        goals=[faster(times, "eager")],
        note=f"step(x, y), medians; batch {BATCH}; one thread of {cpu()}; weights equal after it",
    )


def _step(depth: int, width: int, times: float) -> Record:
    import torch

    import tensorplay_torch

    # Threads help neither at this size, and waiting for one another they make a busy machine's
    # noise their own.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = (
        part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())
    )
    model = torch.nn.Sequential(*layers)
    trained = {label: _Training(copy.deepcopy(model), width) for label in ("ours", "eager")}
    for training in trained.values():
        training.step()  # Both begin with a step behind them: the optimizer's state is there.
    ours, eager = trained["ours"], trained["eager"]
    g = tensorplay_torch.CUDAGraph(device="cpu")
    with tensorplay_torch.graph(g):
        ours.step()

    data = [torch.randn(BATCH, width) for _ in range(6)]
    for training in trained.values():
        training.inputs, training.targets = (itertools.cycle(data[i::2]) for i in range(2))
    contenders = {
        "ours": statement(CODE + "replay()", **vars(ours), replay=g.replay),
        "eager": statement(CODE + "step()", **vars(eager), step=eager.step),
    }
    measured = microseconds(contenders, synchronize=lambda: None, calls=100, batches=1, rounds=15)
    pairs = zip(ours.model.parameters(), eager.model.parameters(), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise RuntimeError("the two trainings did not end with the same weights")
    return record(
        f"host_step_{depth}x{width}",
        measured,
        unit="µs",
        goals=[faster(times, "eager")],
        note=f"a whole step, medians; batch {BATCH}; one thread of {cpu()}; weights equal after it",
    )


class _Training:
    def __init__(self, model: Any, width: int) -> None:
        import torch

        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
        self.x, self.y = torch.ones(BATCH, width), torch.zeros(BATCH, width)
        self.inputs: Iterator[Any] = iter(())
        self.targets: Iterator[Any] = iter(())

    def step(self) -> None:
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(self.model(self.x), self.y).backward()
        self.optimizer.step()


BENCHMARKS = (host_step, host_adapt)
