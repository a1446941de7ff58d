"""What a call of a graphed callable costs the host, beside torch's own, eager and torch.compile."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from peers import gather
from record import Record, at_most, record
from timing import Contender, Timing, microseconds, statement, until_done

NEEDS_GPU = True
WIDTH, LAYERS, BATCH = 256, 8, 64
TORCH = "torch graphed"
COMPILED = "torch.compile reduce-overhead"
OURS = ("autograd", "in_graph", "copy", "alias")
WORK = f"{LAYERS} × (Linear({WIDTH}) + ReLU), batch {BATCH}"


def callable_fwd_bwd() -> list[Record]:
    """Forward and backward, gradients accumulating, of 8 × (Linear(256) + ReLU)."""
    ways = {"autograd": {}, "in_graph": {"param_grads": "in_graph"}, TORCH: None, "eager": None}
    measured, absent = _training(ways, _model(), more=(COMPILED,))
    peers = {label: one for label, one in measured.items() if label not in OURS}
    how = f"host time, medians; m(x).backward(g), {WORK}, every .grad is there already"
    return [
        record(
            f"callable_fwd_bwd_{name}",
            {"ours": measured[ours], **peers},
            unit="µs",
            goals=[at_most(factor, TORCH)],
            note="; ".join(filter(None, (how, f"param_grads={ours!r}", absent))),
        )
        for ours, name, factor in (("autograd", "default", 0.7), ("in_graph", "in_graph", 0.25))
    ]


def callable_fwd_nograd() -> list[Record]:
    """Forward without gradients, results owned or as aliases."""
    ways = {"copy": {}, "alias": {"outputs": "alias"}, TORCH: None, "eager": None}
    measured, absent = _inference(ways, _model(), more=(COMPILED, "jax"))
    peers = {label: one for label, one in measured.items() if label not in OURS}
    how = f"host time, medians; m(x) under no_grad, {WORK}; torch hands out aliases"
    return [
        record(
            f"callable_fwd_nograd{suffix}",
            {"ours": measured[ours], **peers},
            unit="µs",
            goals=[at_most(factor, TORCH)],
            note="; ".join(filter(None, (how, f"outputs={ours!r}", absent))),
        )
        for ours, suffix, factor in (("copy", "", 0.4), ("alias", "_alias", 0.3))
    ]


def callable_throughput() -> list[Record]:
    """The same training calls until the GPU has done them, gradients included."""
    ways = {"autograd": {}, "in_graph": {"param_grads": "in_graph"}, TORCH: None, "eager": None}
    measured, _ = _training(ways, _model(), whole=True)
    return [
        record(
            f"callable_whole_{name}",
            {"ours": measured[ours], TORCH: measured[TORCH], "eager": measured["eager"]},
            unit="µs",
            note=f"until the GPU is done, medians; m(x).backward(g), {WORK}",
        )
        for ours, name in (("autograd", "default"), ("in_graph", "in_graph"))
    ]


def callable_watch() -> list[Record]:
    """What it costs to notice that a parameter moved, of the calls that look for it."""
    import torch

    import tensorplay_torch

    records = []
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.randn(BATCH, WIDTH, device="cuda", requires_grad=True)
        g = torch.randn(BATCH, WIDTH, device="cuda")
        for name, options, look, line in (
            ("nograd", {"outputs": "alias"}, "glance", "with no_grad(): m(x)"),
            ("fwd_bwd", {"param_grads": "in_graph"}, "look", "m(x).backward(g)"),
        ):
            model = tensorplay_torch.make_graphed_callables(_model(), (x,), **options)
            names = {"m": model, "x": x, "g": g, "no_grad": torch.no_grad}
            exec(line, dict(names))
            looking = getattr(model.forward.watch, look)
            measured = microseconds(
                {"ours": statement("look()", look=looking), "call": statement(line, **names)},
                synchronize=torch.cuda.synchronize,
                calls=20,
                batches=10,
            )
            records.append(
                record(
                    f"callable_watch_{name}",
                    measured,
                    unit="µs",
                    goals=[at_most(0.03, "call")],
                    note=f"host time, medians; {line}, {WORK}, {options}: the cheapest such call",
                )
            )
    return records


def callable_parameters() -> list[Record]:
    """Forward and backward with 16 to 2000 parameters."""
    records = []
    for count in (16, 64, 256, 1000, 2000):
        measured, _ = _training(
            {"autograd": {}, "in_graph": {"param_grads": "in_graph"}, TORCH: None},
            _many_parameters(count),
            width=16,
            calls=max(2, 320 // count),
        )
        records += [
            record(
                f"callable_{count}_parameters_{name}",
                {"ours": measured[ours], TORCH: measured[TORCH]},
                unit="µs",
                note="host time, medians; m(x).backward(g), sums of vectors of 16",
            )
            for ours, name in (("autograd", "default"), ("in_graph", "in_graph"))
        ]
    return records


def callable_inputs() -> list[Record]:
    """Forward without gradients with 1 to 64 inputs."""
    records = []
    for count in (1, 4, 16, 64):
        measured, _ = _inference(
            {"copy": {}, "alias": {"outputs": "alias"}, TORCH: None}, _stacked, count=count
        )
        records += [
            record(
                f"callable_{count}_inputs{suffix}",
                {"ours": measured[ours], TORCH: measured[TORCH]},
                unit="µs",
                note=f"host time, medians; m(*xs) under no_grad, xs of {BATCH}×{WIDTH} float32",
            )
            for ours, suffix in (("copy", ""), ("alias", "_alias"))
        ]
    return records


def _model() -> Any:
    import torch

    torch.manual_seed(0)
    layers = [
        part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
    ]
    return torch.nn.Sequential(*layers).cuda()


def _many_parameters(count: int) -> Any:
    import torch

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList(torch.randn(16) for _ in range(count))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.stack(list(self.parts)).sum(0)

    return Sum().cuda()


def _stacked(*inputs: Any) -> Any:
    import torch

    return torch.stack(inputs).sum(0)


def _training(
    ways: Mapping[str, Mapping[str, Any] | None],
    model: Any,
    *,
    more: Sequence[str] = (),
    width: int = WIDTH,
    calls: int = 20,
    whole: bool = False,
) -> tuple[dict[str, Timing], str]:
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.randn(BATCH, width, device="cuda", requires_grad=True)
        g = torch.randn(BATCH, width, device="cuda")
        wanted = torch.autograd.grad(model(x), [x, *model.parameters()], g)

        def contender(label: str) -> Contender:
            mine = copy.deepcopy(model)
            given = x.detach().clone().requires_grad_()
            leaves = [given, *mine.parameters()]
            called = _graphed(label, mine, (given,), ways.get(label))
            for leaf in leaves:
                # In the graph gradients are added to buffers of its own, which the first backward
                # makes `.grad`; others would be copied there and back each time. torch's would
                # become the memory that its graph writes.
                leaf.grad = None if label == "in_graph" else torch.zeros_like(leaf)
            for _ in range(3):
                called(given).backward(g)
            for leaf, one in zip(leaves, wanted, strict=True):
                torch.testing.assert_close(leaf.grad, 3 * one, rtol=1e-3, atol=1e-3)
            line = statement("m(x).backward(g)", m=called, x=given, g=g)
            return until_done(line) if whole else line

        return _measured(ways, more, contender, calls)


def _inference(
    ways: Mapping[str, Mapping[str, Any] | None],
    model: Any,
    *,
    more: Sequence[str] = (),
    count: int = 1,
) -> tuple[dict[str, Timing], str]:
    import torch

    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        inputs = [torch.randn(BATCH, WIDTH, device="cuda") for _ in range(count)]
        wanted = model(*inputs)

        def contender(label: str) -> Contender:
            if label == "jax":
                return _jax(model, *inputs)
            given = tuple(one.clone() for one in inputs)
            called = _graphed(label, copy.deepcopy(model), given, ways.get(label))
            for _ in range(3):
                result = called(*given)
            torch.testing.assert_close(result, wanted, rtol=1e-3, atol=1e-3)
            return statement("m(*xs)", m=called, xs=given)

        return _measured(ways, more, contender, max(10, 100 // count))


def _measured(
    ways: Iterable[str], more: Iterable[str], contender: Callable[[str], Contender], calls: int
) -> tuple[dict[str, Timing], str]:
    import torch

    contenders = {label: contender(label) for label in ways}
    others, absent = gather({label: functools.partial(contender, label) for label in more})
    measured = microseconds(
        contenders | others, synchronize=torch.cuda.synchronize, calls=calls, batches=10
    )
    return measured, absent


def _graphed(
    label: str, model: Any, sample: tuple[Any, ...], options: Mapping[str, Any] | None
) -> Any:
    import torch

    import tensorplay_torch

    if label == "eager":
        return model
    if label == COMPILED:
        compiled = torch.compile(model, mode="reduce-overhead")
        step = torch.compiler.cudagraph_mark_step_begin

        def call(*inputs: Any) -> Any:
            step()
            return compiled(*inputs)

        return call
    own = tuple(one.detach().clone().requires_grad_(one.requires_grad) for one in sample)
    if label == TORCH:
        return torch.cuda.make_graphed_callables(model, own)
    return tensorplay_torch.make_graphed_callables(model, own, **(options or {}))


def _jax(model: Any, x: Any) -> Contender:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    if jax.devices()[0].platform != "gpu":
        raise RuntimeError("jax sees no GPU")
    arrays = [jax.numpy.asarray(one.detach().cpu().numpy()) for one in model.parameters()]
    layers = list(zip(arrays[::2], arrays[1::2], strict=True))

    @jax.jit
    def forward(layers: Any, x: Any) -> Any:
        for weight, bias in layers:
            x = jax.nn.relu(x @ weight.T + bias)
        return x

    given = jax.numpy.asarray(x.cpu().numpy())
    forward(layers, given).block_until_ready()
    return statement("f(layers, x)", f=forward, layers=layers, x=given)


BENCHMARKS = (
    callable_fwd_bwd,
    callable_fwd_nograd,
    callable_throughput,
    callable_watch,
    callable_parameters,
    callable_inputs,
)
