"""What a capture costs the host, until the graph is executable, and what an update saves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from record import Record, at_most, record
from timing import Contender, Timing, microseconds

NEEDS_GPU = True
WIDTH, LAYERS, BATCH = 256, 8, 64


def capture_mlp() -> list[Record]:
    """Capture and instantiate the forward of 8 × (Linear(256) + ReLU), no grad."""
    measured = _measure(("untracked", "tracked", "torch"))
    how = "host time, medians; the whole with block, instantiation included"
    return [
        record(
            "capture_mlp",
            {"ours": measured["untracked"], "torch": measured["torch"]},
            unit="µs",
            goals=[at_most(1.1, "torch")],
            note=f"{how}; track_operands=False",
        ),
        record(
            "capture_mlp_tracked",
            {"ours": measured["tracked"], "torch": measured["torch"]},
            unit="µs",
            goals=[at_most(2, "torch")],
            note=f"{how}; operands are tracked, as by default",
        ),
    ]


def update_mlp() -> list[Record]:
    """Capture the same again and update the executable in place."""
    measured = _measure(("update", "torch", "torch, capture alone", "torch, bare update"))
    return [
        record(
            "update_mlp",
            {"ours": measured.pop("update"), **measured},
            unit="µs",
            goals=[at_most(0.8, "torch")],
            note="host time, medians; a capture with keep_graph=True and track_operands=False into "
            "the graph's pool, then g.update(it), each time in place; torch alone: a capture that "
            "instantiates nothing; bare: such a capture into a pool that is held, then "
            "cuGraphExecUpdate, its result ignored",
        )
    ]


def _measure(labels: tuple[str, ...]) -> dict[str, Timing]:
    import torch

    torch.manual_seed(0)
    layers = [
        part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
    ]
    model = torch.nn.Sequential(*layers).cuda()
    x = torch.randn(BATCH, WIDTH, device="cuda")
    stream = torch.cuda.Stream()
    ways = {
        "untracked": _untracked,
        "tracked": _tracked,
        "torch": _torch,
        "torch, capture alone": _torch_alone,
        "torch, bare update": _torch_bare,
        "update": _update,
    }
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            model(x)
        torch.cuda.synchronize()
        contenders = {label: ways[label](model, x) for label in labels}
        return microseconds(
            contenders, synchronize=torch.cuda.synchronize, calls=10, batches=1, rounds=41
        )


def _untracked(model: Any, x: Any) -> Contender:
    return _captures(lambda: _capture(model, x, track_operands=False))


def _tracked(model: Any, x: Any) -> Contender:
    return _captures(lambda: _capture(model, x, track_operands=True))


def _capture(model: Any, x: Any, **options: Any) -> Any:
    import tensorplay_torch

    g = tensorplay_torch.CUDAGraph()
    with tensorplay_torch.graph(g, **options):
        model(x)
    return g


def _torch(model: Any, x: Any) -> Contender:
    return _by_torch(model, x)


def _torch_alone(model: Any, x: Any) -> Contender:
    return _by_torch(model, x, keep_graph=True)


def _by_torch(model: Any, x: Any, **options: Any) -> Contender:
    import torch

    def capture() -> Any:
        g = torch.cuda.CUDAGraph(**options)
        with torch.cuda.graph(g):
            model(x)
        return g

    return _captures(capture)


def _torch_bare(model: Any, x: Any) -> Contender:
    """The least that anything on torch can do: nothing is checked, kept or waited for."""
    import torch
    from cuda.bindings import driver

    target = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(target):
        model(x)
    target.instantiate()
    executable = driver.CUgraphExec(target.raw_cuda_graph_exec())

    def update() -> Any:
        g = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(g, pool=target.pool()):
            model(x)
        code, _ = driver.cuGraphExecUpdate(executable, driver.CUgraph(g.raw_cuda_graph()))
        if int(code):
            raise RuntimeError(f"cuGraphExecUpdate returned {code!r}")
        return g

    return _captures(update)


def _captures(capture: Callable[[], Any]) -> Contender:
    """Captures in a row; what ends them is not counted, nor is the wait for the device before."""
    import torch

    def batch(calls: int) -> float:
        seconds = 0.0
        for _ in range(calls):
            torch.cuda.synchronize()
            began = time.perf_counter()
            g = capture()
            seconds += time.perf_counter() - began
            g.reset()
        return seconds

    return batch


def _update(model: Any, x: Any) -> Contender:
    import torch

    import tensorplay_torch

    target = _capture(model, x, track_operands=False)
    target.replay()  # Only now is it known to draw no random numbers, and so to be updatable.

    def batch(calls: int) -> float:
        seconds = 0.0
        for _ in range(calls):
            torch.cuda.synchronize()
            began = time.perf_counter()
            again = tensorplay_torch.CUDAGraph(keep_graph=True)
            with tensorplay_torch.graph(again, pool=target, track_operands=False):
                model(x)
            done = target.update(again)
            seconds += time.perf_counter() - began
            if not done.in_place:
                raise RuntimeError(f"the update was not in place: {done.reason}")
        return seconds

    return batch


BENCHMARKS = (capture_mlp, update_mlp)
