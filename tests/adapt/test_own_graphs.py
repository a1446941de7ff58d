"""Steps around a graph of one's own, or of torch's."""

from __future__ import annotations

import pytest
import torch

import tensorplay_torch as tt
from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    GraphStateError,
    SignatureMismatch,
)

from .steps import linear, mse


def test_a_graph_of_ones_own(device):
    model, optimizer = linear(device, momentum=0.9)
    twin, eager = linear(device, momentum=0.9)
    x, y = torch.randn(3, 4, device=device), torch.randn(3, 2, device=device)

    def run(model, optimizer, x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = mse(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for one in ((model, optimizer), (twin, eager)):
        run(*one, x, y)  # Momentum exists from the first step on.
    graph = tt.CUDAGraph(device=device)
    with tt.graph(graph, capture_error_mode="thread_local"):
        loss = run(model, optimizer, x, y)
    step = CudaGraphAdaptationStep(model, optimizer, x, y, graph, loss)
    for _ in range(5):
        fresh = torch.randn(3, 4, device=device), torch.randn(3, 2, device=device)
        assert torch.equal(step(*fresh), run(twin, eager, *fresh))
    assert torch.equal(model.weight, twin.weight)
    with pytest.raises(SignatureMismatch):
        step(fresh[0][:1], fresh[1])
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(tt.StaleGraph, match=r"\['lr'\] is 0\.5, and 0\.1 is fixed"):
        step(*fresh)
    optimizer.param_groups[0]["lr"] = 0.1
    model.bias.requires_grad_(False)
    with pytest.raises(tt.StaleGraph, match=r"bias\.requires_grad is False, was True"):
        step(*fresh)
    model.bias.requires_grad_(True)
    with pytest.raises(GraphStateError, match="loss function is not known"):
        step.verify(2)
    before = step.snapshot()
    step.close()
    for refused in (lambda: step(*fresh), lambda: step.reset_to(before)):
        with pytest.raises(GraphStateError, match="closed"):
            refused()
    graph.replay()  # It stays its maker's.


@pytest.mark.parametrize(
    ("name", "value", "error", "met"),
    [
        ("module", 5, ArgumentTypeError, "module is"),
        ("optimizer", 5, ArgumentTypeError, "optimizer is"),
        ("graph", 5, ArgumentTypeError, "graph is"),
        ("static_loss", 5, ArgumentTypeError, "static_loss is"),
        ("static_loss", torch.zeros(3, 4), ArgumentError, "shape"),
        ("static_inputs", 5, ArgumentError, "no tensor"),
    ],
)
def test_what_no_step_can_be_made_of_is_refused(name, value, error, met):
    model, optimizer = linear("cpu")
    graph = tt.CUDAGraph(device="cpu")
    x, loss = torch.zeros(2, 4), torch.zeros(())
    with tt.graph(graph):
        loss.copy_(x.sum())
    parts = {
        "module": model,
        "optimizer": optimizer,
        "static_inputs": x,
        "static_targets": None,
        "graph": graph,
        "static_loss": loss,
    }
    CudaGraphAdaptationStep(**parts).close()
    with pytest.raises(error, match=met):
        CudaGraphAdaptationStep(**{**parts, name: value})


@pytest.mark.gpu
def test_a_graph_of_torchs():
    model, optimizer = linear("cuda")
    x, y = torch.randn(3, 4, device="cuda"), torch.randn(3, 2, device="cuda")

    def run():
        optimizer.zero_grad(set_to_none=True)
        loss = mse(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = run()
    step = CudaGraphAdaptationStep(model, optimizer, x, y, graph, loss)
    first = step(torch.ones_like(x), torch.zeros_like(y))
    assert step(torch.ones_like(x), torch.zeros_like(y)) < first
    with pytest.raises(SignatureMismatch):
        step(torch.ones_like(x)[:1], torch.zeros_like(y))
