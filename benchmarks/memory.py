"""Device memory that captured graphs reserve, beside torch's own captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from record import MEBI, Record, at_most, record

NEEDS_GPU = True


def pool_24_layers() -> list[Record]:
    """Memory that the capture of a 24-layer model reserves, no grad."""
    import torch

    model = torch.nn.Sequential(
        *(part for _ in range(24) for part in (torch.nn.Linear(1024, 1024), torch.nn.ReLU()))
    ).cuda()
    x = torch.randn(2048, 1024, device="cuda")
    _warm(model, x)
    ours = _reserved(lambda: _ours(model, [x]))
    return [
        record(
            "pool_24_layers",
            {
                "ours": ours,
                "torch": _reserved(lambda: _torch(model, x), alone=True),
                "torch after another graph": _reserved(lambda: _torch(model, x)),
            },
            unit="MiB",
            goals=[at_most(1.05, "torch")],
            note="growth of torch.cuda.memory_reserved() over the capture; batch 2048, width 1024; "
            "cuBLAS's work space is in it: ours has one of its own, and so has the first graph of "
            "torch's in a process; a later one goes on with that of an earlier graph, which torch "
            "frees with that graph",
        )
    ]


def pool_11_shapes() -> list[Record]:
    """Memory of 11 captures of different batch sizes in one pool, beside the largest alone."""
    import torch

    model = torch.nn.Sequential(
        *(part for _ in range(8) for part in (torch.nn.Linear(1024, 1024), torch.nn.ReLU()))
    ).cuda()
    batches = [torch.randn(256 * n, 1024, device="cuda") for n in range(11, 0, -1)]
    for x in batches:
        _warm(model, x)
    alone = _reserved(lambda: _ours(model, batches[:1]))
    return [
        record(
            "pool_11_shapes",
            {"ours": _reserved(lambda: _ours(model, batches)), "floor": alone},
            unit="MiB",
            goals=[at_most(1.15)],
            note="growth of torch.cuda.memory_reserved() over the captures, largest first, each "
            "result dropped before the next; the floor is the largest alone",
        )
    ]


def _warm(model: Any, x: Any) -> None:
    import torch

    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        model(x)
    torch.cuda.synchronize()


def _ours(model: Any, batches: list[Any]) -> Callable[[], None]:
    import tensorplay_torch

    pool = tensorplay_torch.graph_pool_handle()
    graphs = []
    for x in batches:
        g = tensorplay_torch.CUDAGraph()
        with tensorplay_torch.graph(g, pool=pool):
            model(x)
        graphs.append(g)

    def reset() -> None:
        for g in graphs:
            g.reset()

    return reset


def _torch(model: Any, x: Any) -> Callable[[], None]:
    import torch

    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        model(x)
    return g.reset


def _reserved(capture: Callable[[], Callable[[], None]], *, alone: bool = False) -> float:
    """MiB that a second capture reserves: the first also pays what is paid once a process.

    Args:
        alone: Of what is paid once, it pays for cuBLAS's work space all the same.
    """
    import torch

    grown = 0
    with torch.no_grad():
        for _ in range(2):
            if alone:
                torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved()
            reset = capture()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            grown = torch.cuda.memory_reserved() - before
            reset()
    return grown / MEBI


BENCHMARKS = (pool_24_layers, pool_11_shapes)
