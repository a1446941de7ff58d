"""``preflight``: what a capture would mind, found by one run that changes nothing."""

from __future__ import annotations

import random
import sys

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .preflights import only, problems

HERE = f"{__file__}:"


def line(offset: int = 1) -> str:
    """The place ``offset`` lines below the call."""
    return f"{HERE}{sys._getframe(1).f_lineno + offset}"


def test_plain_code_has_no_problem(x):
    report = tp.preflight(lambda x: (x * 2).relu().sum(), x)
    assert report.ok
    assert report.findings == ()
    assert str(report).endswith(f"on {x.device}: nothing found")


READS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "index": lambda x: [1, 2, 3][x.argmax().new_zeros(())],
    "tolist": lambda x: x.tolist(),
    "contains": lambda x: 2.0 in x,
    "repr": lambda x: repr(x),
    "format": lambda x: f"{x[0]:.2f}",
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "nested": lambda x: torch.tensor([x[0], x[1]]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_host_read_is_found_with_its_place_and_a_remedy(x, read):
    finding = only(read, x)
    # On CUDA torch itself may copy the values first, or pick some of them, as it does to print.
    on_the_way = {"blocking copy", "data-dependent shape"} if x.is_cuda else set()
    assert finding.kind in {"host read"} | on_the_way
    assert finding.where.startswith(HERE)
    assert finding.remedy
    assert finding.operation


def test_each_line_is_a_finding_of_its_own_and_loops_are_one(x):
    def branches(x):
        if x.sum() > 0:
            x = x + 1
        for _ in range(3):
            x = x * float(x[0])
        return x

    first = line(-6)
    found = problems(branches, x)
    assert len(found) == 2
    assert found[0].where == first
    assert {one.kind for one in found} == {"host read"}


def test_the_run_goes_on_after_what_a_capture_refuses(x):
    def several(x):
        count = int((x > 0).sum())
        mask = x[x > 0]
        noise = random.random()
        return mask.sum() * count * noise

    kinds = {one.kind for one in problems(several, x)}
    assert kinds == {"host read", "data-dependent shape", "host randomness"}


SHAPES = {
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "where": lambda x: torch.where(x > 0),
    "mask written": lambda x: x.clone().index_put_((x > 0,), x[:3]),
    "repeat_interleave": lambda x: x.repeat_interleave((x > 0).long()),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_shape_that_depends_on_values_is_found(x, shape):
    found = problems(shape, x)
    assert {one.kind for one in found} <= {"data-dependent shape", "host read"}
    assert "data-dependent shape" in {one.kind for one in found}
    assert all(one.where.startswith(HERE) for one in found)


FINE = {
    "nonzero_static": lambda x: x.nonzero_static(size=3),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "number by mask": lambda x: x.clone().__setitem__(x > 0, 0.0),
    "where": lambda x: torch.where(x > 0, x, 0),
    "dropout": lambda x: nn.functional.dropout(x),
    "rand": lambda x: torch.rand_like(x),
    "view": lambda x: x.view(2, 3).t().reshape(-1),
    "repeat_interleave": lambda x: x.repeat_interleave((x > 0).long(), output_size=3),
}


@pytest.mark.parametrize("fine", FINE.values(), ids=FINE)
def test_what_graphs_can_have_is_no_problem(x, fine):
    report = tp.preflight(fine, x)
    assert report.ok, str(report)


def test_backward_passes_are_looked_at(x):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * grad.sum().item()

    weight = x.clone().requires_grad_()
    finding = only(lambda: Reads.apply(weight).sum().backward())
    assert finding.kind == "host read"
    assert finding.where.startswith(HERE)
    assert weight.grad is None


def test_keyword_arguments_are_passed_on(x):
    finding = only(lambda x, *, scale: x * scale.item(), x, scale=x[0])
    assert finding.kind == "host read"


def test_a_graphed_function_is_run_without_its_graphs(x):
    graphed = tp.graphed(lambda x: x * 2)
    assert tp.preflight(graphed, x).ok
    assert graphed.graphed is None
    module = tp.make_graphed_callables(nn.Linear(6, 2).to(x.device), (x,))
    with pytest.raises(tp.GraphStateError):
        tp.preflight(module, x)
    tp.release(module)


def test_it_is_refused_inside_a_capture(device, x):
    with (
        pytest.raises(tp.GraphStateError, match="preflight"),
        tp.graph(tp.CUDAGraph(device=device)),
    ):
        tp.preflight(lambda x: x * 2, x)


def test_a_report_reads_well(x):
    def step(x):
        scale = x.abs().max().item()
        hidden.add_(1)
        return x / scale

    hidden = torch.zeros_like(x)
    report = tp.preflight(step, x)
    said = str(report)
    first, *rest = said.splitlines()
    assert "step on" in first
    assert first.endswith("1 problem, 1 note")
    assert rest[0].startswith("  problem: host read: ")
    assert any(one.startswith("  note: write: ") for one in rest)
    assert report.findings == report.problems + report.notes


@pytest.mark.gpu
def test_what_only_a_gpu_minds_is_found():
    x, host = torch.ones(6, device="cuda"), torch.zeros(6)
    kinds = {
        one.kind
        for one in problems(
            lambda x: (
                x.cpu(),
                host.add_(1),
                torch.rand(3),
                torch.cuda.synchronize(),
                x.to("cuda"),
            ),
            x,
        )
    }
    assert kinds >= {"blocking copy", "write on the host", "host randomness", "wait"}
    assert not host.any()


@pytest.mark.gpu
def test_what_passes_on_a_gpu_can_be_captured_there():
    x = torch.ones(6, device="cuda")

    def work(x):
        return (x.view(2, 3) @ x.view(3, 2)).relu().sum()

    assert tp.preflight(work, x).ok
    made = tp.CUDAGraph()
    with tp.graph(made):
        work(x)
