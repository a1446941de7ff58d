"""What a launch costs the host: graphs of one kernel and of many, beside C++ and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floor import Floor
from peers import gather
from record import Record, at_most, record
from timing import Contender, Timing, microseconds, statement

if TYPE_CHECKING:
    import torch

NEEDS_GPU = True


def replay_1() -> list[Record]:
    """Host time of one launch of a graph of one kernel."""
    measured, note = _launches(1, calls=200)
    common = {label: one for label, one in measured.items() if not label.startswith("ours")}
    return [
        record(
            f"replay_1{suffix}",
            {"ours": measured[key], **common},
            unit="µs",
            goals=goals,
            note=f"{how}; {note}",
        )
        for key, suffix, how, goals in (
            ("ours stream", "", "replay(torch.cuda.Stream)", [at_most(1.25)]),
            ("ours handle", "_handle", "replay(int)", [at_most(1.25)]),
            ("ours current", "_current", "replay()", [at_most(1.5)]),
        )
    ]


def replay_n() -> list[Record]:
    """The same of graphs of 10, 100 and 1000 kernels in a row."""
    records = []
    for nodes, calls in ((10, 100), (100, 20), (1000, 5)):
        measured, note = _launches(nodes, calls)
        ours = measured["ours stream"]
        others = {label: one for label, one in measured.items() if not label.startswith("ours")}
        records.append(
            record(
                f"replay_{nodes}",
                {"ours": ours, **others},
                unit="µs",
                goals=[at_most(1.25)],
                note=f"replay(torch.cuda.Stream); {note}",
            )
        )
    return records


def _launches(nodes: int, calls: int) -> tuple[dict[str, Timing], str]:
    import torch

    stream = torch.cuda.Stream()
    native = Floor()
    counter = torch.zeros(1, device="cuda")
    executable = native.chain(counter, nodes)
    handle = stream.cuda_stream
    with torch.cuda.stream(stream):
        ours = _ours(nodes)
        contenders: dict[str, Contender] = {
            "ours stream": statement("g.replay(stream)", g=ours, stream=stream),
            "ours handle": statement("g.replay(handle)", g=ours, handle=handle),
            "ours current": statement("g.replay()", g=ours),
            "floor": lambda launches: native.launch(executable, handle, launches),
            "torch": statement("g.replay()", g=_torch(nodes)),
        }
        more, absent = gather(
            {
                "cuda.bindings": lambda: _bindings(nodes, native, handle),
                "cupy": lambda: _cupy(nodes),
            }
        )
        measured = microseconds(
            contenders | more, synchronize=torch.cuda.synchronize, calls=calls, batches=10
        )
    return measured, "; ".join(filter(None, ("host time, medians", absent)))


def _ours(nodes: int) -> object:
    import torch

    import tensorplay_torch

    x = torch.zeros(1, device="cuda")
    x.add_(1)
    g = tensorplay_torch.CUDAGraph()
    with tensorplay_torch.graph(g):
        for _ in range(nodes):
            x.add_(1)
    x.zero_()
    for _ in range(3):
        g.replay()
    _expect(x, 3 * nodes)
    return g


def _torch(nodes: int) -> torch.cuda.CUDAGraph:
    import torch

    x = torch.zeros(1, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(nodes):
            x.add_(1)
    x.zero_()
    g.replay()
    _expect(x, nodes)
    g.keep = x  # Its address is in the graph, which does not hold it.
    return g


def _bindings(nodes: int, native: Floor, handle: int) -> Contender:
    import torch
    from cuda.bindings import driver

    x = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    executable = driver.CUgraphExec(native.chain(x, nodes))
    stream = driver.CUstream(handle)
    (code,) = driver.cuGraphLaunch(executable, stream)
    if code:
        raise RuntimeError(f"cuGraphLaunch returned {code}")
    _expect(x, nodes)
    return statement(
        "launch(executable, stream)",
        launch=driver.cuGraphLaunch,
        executable=executable,
        stream=stream,
        keep=x,
    )


def _cupy(nodes: int) -> Contender:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(1, dtype=cupy.float32)
        x += 1
        stream.synchronize()
        stream.begin_capture()
        for _ in range(nodes):
            x += 1
        g = stream.end_capture()
        x.fill(0)
        g.launch(stream)
        if x.get()[0] != nodes:
            raise RuntimeError(f"CuPy's graph gave {x.get()[0]}, not {nodes}")
    return statement("g.launch(stream)", g=g, stream=stream, keep=x)


def _expect(x: torch.Tensor, value: float) -> None:
    if x.item() != value:
        raise RuntimeError(f"the replays gave {x.item()}, not {value}")


BENCHMARKS = (replay_1, replay_n)
