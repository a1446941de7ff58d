"""What calling a graphed model costs the host: forward alone, and forward with backward."""

from __future__ import annotations

import copy
import os
from typing import Any

from peers import gather
from record import Record, at_most, record
from timing import Contender, microseconds, statement

NEEDS_GPU = True
WIDTH, LAYERS, BATCH = 256, 8, 64


def graphed_forward() -> list[Record]:
    """Forward of a graphed 8 × (Linear(256) + ReLU), no grad."""
    import torch

    model, x, _ = _model()
    x = x.detach()
    with torch.no_grad():
        expected = model(x)
        ways = {
            "owned": _ours(model, x, outputs="copy"),
            "alias": _ours(model, x, outputs="alias"),
            "torch graphed": _torch(model, x),
        }
        for label in ("owned", "alias"):
            if not torch.equal(ways[label](x), expected):
                raise RuntimeError(f"{label} does not give what eager gives")
        contenders = {label: statement("m(x)", m=way, x=x) for label, way in ways.items()}
        contenders["eager"] = statement("m(x)", m=model, x=x)
        more, absent = gather(
            {"torch.compile": lambda: _compiled(model, x), "jax": lambda: _jax(model, x)}
        )
        measured = microseconds(
            contenders | more, synchronize=torch.cuda.synchronize, calls=20, batches=20
        )
    peers = {label: measured[label] for label in measured if label not in ("owned", "alias")}
    return [
        record(
            f"graphed_forward{suffix}",
            {"ours": measured[ours], **peers},
            unit="µs",
            goals=[at_most(factor, "torch graphed")],
            note="; ".join(filter(None, (f"host time, medians; {how}", absent))),
        )
        for ours, suffix, factor, how in (
            ("owned", "", 0.4, "each result is its caller's"),
            ("alias", "_alias", 0.3, 'outputs="alias"; torch hands out aliases too'),
        )
    ]


def graphed_train() -> list[Record]:
    """Forward and backward of the same, gradients accumulating."""
    import torch

    model, x, upstream = _model()
    ways = {
        "autograd": _ours(model, x, param_grads="autograd"),
        "in_graph": _ours(model, x, param_grads="in_graph"),
        "torch graphed": _torch(model, x),
        "eager": copy.deepcopy(model),
    }
    inputs = {label: x.detach().clone().requires_grad_() for label in ways}
    for label, way in ways.items():
        way(inputs[label]).backward(upstream)
    torch.cuda.synchronize()
    for label in ("autograd", "in_graph"):
        pairs = zip(ways[label].parameters(), ways["eager"].parameters(), strict=True)
        if not all(torch.equal(ours.grad, eager.grad) for ours, eager in pairs):
            raise RuntimeError(f"{label} does not give eager's gradients")
    contenders: dict[str, Contender] = {
        label: statement("m(x).backward(upstream)", m=way, x=inputs[label], upstream=upstream)
        for label, way in ways.items()
    }
    measured = microseconds(contenders, synchronize=torch.cuda.synchronize, calls=10, batches=20)
    peers = {label: measured[label] for label in ("torch graphed", "eager")}
    return [
        record(
            f"graphed_train{suffix}",
            {"ours": measured[ours], **peers},
            unit="µs",
            goals=[at_most(factor, "torch graphed")],
            note=f'host time, medians; param_grads="{ours}"; gradients of all parameters and of '
            "the input add to .grad",
        )
        for ours, suffix, factor in (("autograd", "", 0.7), ("in_graph", "_in_graph", 0.25))
    ]


def _model() -> tuple[Any, Any, Any]:
    import torch

    torch.manual_seed(0)
    layers = (
        part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
    )
    model = torch.nn.Sequential(*layers).cuda()
    x = torch.randn(BATCH, WIDTH, device="cuda").requires_grad_()
    return model, x, torch.randn(BATCH, WIDTH, device="cuda")


def _ours(model: Any, x: Any, **options: Any) -> Any:
    import tensorplay_torch

    sample = x.detach().clone().requires_grad_(x.requires_grad)
    return tensorplay_torch.make_graphed_callables(copy.deepcopy(model), (sample,), **options)


def _torch(model: Any, x: Any) -> Any:
    import torch

    sample = x.detach().clone().requires_grad_(x.requires_grad)
    return torch.cuda.make_graphed_callables(copy.deepcopy(model), (sample,))


def _compiled(model: Any, x: Any) -> Contender:
    import torch

    compiled = torch.compile(copy.deepcopy(model), mode="reduce-overhead")
    for _ in range(4):
        compiled(x)
    return statement("m(x)", m=compiled, x=x)


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


BENCHMARKS = (graphed_forward, graphed_train)
