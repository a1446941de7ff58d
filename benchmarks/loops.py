"""A loop whose end the device decides: a while node, beside a loop that asks the host each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from floor import Floor
from record import Record, at_most, faster, record
from timing import Contender, Timing, microseconds, on_device, statement, until_done

if TYPE_CHECKING:
    import torch

NEEDS_GPU = True
STEPS = 1000


def while_1000() -> list[Record]:
    """Time an iteration of a loop of 1000, its body three kernels and the test of the end."""
    import torch

    native = Floor()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # How near memory is to a multiprocessor goes by its address: where the same kernels are
        # compared, they work on the same arrays.
        arrays = _arrays()
        loops = {
            "torch's kernels": _ours(_torch_body, _arrays()),
            "the floor's kernels": _ours(lambda *arrays: _floor_body(native, *arrays), arrays),
        }
        executable = native.loop(*arrays)
        arrays[0].zero_()
        handle = stream.cuda_stream
        native.launch(executable, handle, 1)
        _expect(arrays, 1)
        graphs: dict[str, Contender] = {
            **{
                label: statement("g.replay()", g=g, keep=kept) for label, (g, kept) in loops.items()
            },
            "floor": lambda launches: native.launch(executable, handle, launches),
        }
        host = {"host loop": statement("loop(*arrays)", loop=_host_loop, arrays=_arrays())}
        whole = _an_iteration({label: until_done(c) for label, c in (graphs | host).items()})
        device = _an_iteration({label: on_device(c) for label, c in graphs.items()})
    return [
        record(
            "while_1000",
            {"ours": whole["torch's kernels"], "host loop": whole["host loop"]},
            unit="µs",
            goals=[faster(3, "host loop")],
            note="an iteration, end to end, medians; g.while_loop around x.add_(1), n.add_(1), "
            "torch.lt(n, limit, out=p); the host loop does the same and reads p with .item()",
        ),
        record(
            "while_1000_same_kernels",
            {"ours": device["the floor's kernels"], "floor": device["floor"]},
            unit="µs",
            goals=[at_most(1.05)],
            note="an iteration, on the device by events, medians; g.while_loop around the very "
            "kernels of the loop built in C++",
        ),
    ]


def _an_iteration(contenders: dict[str, Contender]) -> dict[str, Timing]:
    import torch

    measured = microseconds(
        contenders, synchronize=torch.cuda.synchronize, calls=4, batches=1, rounds=9
    )
    return {label: timing.scaled(1 / STEPS) for label, timing in measured.items()}


def _arrays() -> tuple[torch.Tensor, ...]:
    import torch

    return (
        torch.zeros(1, device="cuda"),
        torch.zeros(1, dtype=torch.int64, device="cuda"),
        torch.full((1,), STEPS, dtype=torch.int64, device="cuda"),
        torch.zeros(1, dtype=torch.bool, device="cuda"),
    )


def _torch_body(x: Any, n: Any, limit: Any, predicate: Any) -> None:
    import torch

    x.add_(1)
    n.add_(1)
    torch.lt(n, limit, out=predicate)


def _floor_body(native: Floor, x: Any, n: Any, limit: Any, predicate: Any) -> None:
    import torch

    native.body(x, n, limit, predicate, torch.cuda.current_stream().cuda_stream)


def _ours(body: Any, arrays: tuple[torch.Tensor, ...]) -> tuple[object, object]:
    import torch

    import tensorplay_torch

    x, n, limit, predicate = arrays
    body(*arrays)
    n.zero_()
    torch.lt(n, limit, out=predicate)
    g = tensorplay_torch.CUDAGraph()
    with tensorplay_torch.graph(g):
        n.zero_()
        torch.lt(n, limit, out=predicate)
        with g.while_loop(predicate) as loop:
            body(*arrays)
            loop.condition(predicate)
    x.zero_()
    for _ in range(2):
        g.replay()
    _expect(arrays, 2)
    return g, arrays


def _host_loop(x: Any, n: Any, limit: Any, predicate: Any) -> None:
    import torch

    n.zero_()
    torch.lt(n, limit, out=predicate)
    while predicate.item():
        _torch_body(x, n, limit, predicate)


def _expect(arrays: tuple[torch.Tensor, ...], runs: int) -> None:
    x, n = arrays[0].item(), arrays[1].item()
    if (x, n) != (runs * STEPS, STEPS):
        raise RuntimeError(f"{runs} runs of the loop counted x = {x}, n = {n}")


BENCHMARKS = (while_1000,)
