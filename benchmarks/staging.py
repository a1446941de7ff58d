"""What it costs the host to bring fresh inputs into a graph's buffers, check them, and launch."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from floor import Floor
from record import Record, at_most, faster, record
from timing import Contender, Timing, microseconds, statement

NEEDS_GPU = True
SHAPE = (64, 256)
COPIES = "for a, b in zip(static, next(sets)): a.copy_(b)\ng.replay()"
FOREACH = "copy(static, next(sets))\ng.replay()"


def stage_16() -> list[Record]:
    """Sixteen inputs checked, staged and launched in one call."""
    measured = _staged(16)
    goals = [at_most(5), faster(15, "torch copy_ + replay")]
    return [
        _record("stage_16", "ours", measured, goals),
        _record("stage_16_plan", "plan", measured, goals),
    ]


def stage_n() -> list[Record]:
    """The same of 1 to 256 inputs."""
    return [_record(f"stage_{n}", "ours", _staged(n), ()) for n in (1, 4, 64, 256)]


def _record(name: str, ours: str, measured: dict[str, Timing], goals: Any) -> Record:
    how = {
        "ours": "g.stage_and_launch(static, inputs)",
        "plan": "plan = g.stage(static); plan(inputs)",
    }
    kept = {label: one for label, one in measured.items() if label not in how}
    return record(
        name,
        {"ours": measured[ours], **kept},
        unit="µs",
        goals=goals,
        note=f"host time, medians; {how[ours]}, all checks on, inputs of {SHAPE[0]}×{SHAPE[1]} "
        "float32 that change from call to call; the floor launches the same executable unstaged",
    )


def _staged(count: int) -> dict[str, Timing]:
    import torch

    import tensorplay_torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        static = _inputs(count)
        sets = [_inputs(count) for _ in range(3)]
        _work(static)
        g = tensorplay_torch.CUDAGraph()
        with tensorplay_torch.graph(g):
            result = _work(static)
        raw = g.raw_cuda_graph_exec()
        plan = g.stage(static)
        for inputs in sets:
            for way in (functools.partial(g.stage_and_launch, static), plan):
                result.zero_()
                way(inputs)
                if not torch.equal(result, _work(inputs)):
                    raise RuntimeError("the staged launch did not compute what eager does")
        native = Floor()
        handle = stream.cuda_stream
        contenders: dict[str, Contender] = {
            "ours": statement(
                "g.stage_and_launch(static, next(sets))",
                g=g,
                static=static,
                sets=itertools.cycle(sets),
            ),
            "plan": statement("plan(next(sets))", plan=plan, sets=itertools.cycle(sets)),
            "floor": lambda launches: native.launch(raw, handle, launches),
        }
        theirs, static_too = _torch_graph(count)
        names = {"g": theirs, "static": static_too, "copy": torch._foreach_copy_}
        contenders["torch copy_ + replay"] = statement(COPIES, **names, sets=itertools.cycle(sets))
        contenders["torch _foreach_copy_ + replay"] = statement(
            FOREACH, **names, sets=itertools.cycle(sets)
        )
        calls = max(5, 100 // count)
        return microseconds(contenders, synchronize=torch.cuda.synchronize, calls=calls, batches=20)


def _inputs(count: int) -> list[Any]:
    import torch

    return [torch.randn(SHAPE, device="cuda") for _ in range(count)]


def _work(inputs: list[Any]) -> Any:
    import torch

    return torch.stack(inputs).sum(0)


def _torch_graph(count: int) -> tuple[Any, list[Any]]:
    import torch

    static = _inputs(count)
    _work(static)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        g.result = _work(static)
    return g, static


BENCHMARKS = (stage_16, stage_n)
