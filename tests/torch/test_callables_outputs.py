"""Results of graphed callables: any nesting, the caller's own unless aliases were asked for."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .callables import rand

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    note: str = "as it was"


class Module(nn.Module):
    """Returns whatever `shape` makes of what it computed."""

    def __init__(self, shape):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0))
        self.shape = shape

    def forward(self, x):
        return self.shape(self, x, self.linear(x))


SHAPES = {
    "tensor": lambda m, x, y: y,
    "tuple": lambda m, x, y: (y, y * 2),
    "one in a tuple": lambda m, x, y: (y,),
    "list": lambda m, x, y: [y, y.sum()],
    "dict": lambda m, x, y: {"y": y, "more": {"z": y + 1}},
    "named tuple": lambda m, x, y: Pair(y, (y.relu(), None)),
    "dataclass": lambda m, x, y: Output(y, y.sum()),
    "dataclass with None": lambda m, x, y: Output(y),
    "None and numbers": lambda m, x, y: (None, y, 7, "text", 2.5, (), []),
    "structseq": lambda m, x, y: torch.max(y, 1),
    "no grad": lambda m, x, y: (y, y.argmax(1), y > 0, (y * 2).detach()),
    "an input": lambda m, x, y: (x, y),
    "a parameter": lambda m, x, y: (m.linear.weight, y),
    "a buffer": lambda m, x, y: (m.table, y),
    "twice": lambda m, x, y: (y, y),
    "views": lambda m, x, y: (y[1:], y[:, ::2], y.t(), y.view(-1), y),
    "expanded": lambda m, x, y: (y.sum().expand(3, 4), y),
    "transposed": lambda m, x, y: y.t(),
    "scalar": lambda m, x, y: y.sum(),
    "empty": lambda m, x, y: (y[:0], y),
    "view of an input": lambda m, x, y: (x.view(-1), y),
    "view of a parameter": lambda m, x, y: (m.linear.weight.t(), y),
    "made from nothing": lambda m, x, y: (torch.zeros(3, device=x.device), y),
    "other dtypes": lambda m, x, y: (
        y.double(),
        y.half(),
        y.int(),
        y.bool(),
        y.to(torch.complex64),
    ),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("outputs", ["copy", "alias"])
def test_any_result_comes_back_as_from_eager(device, twins, shape, outputs):
    """B9: torch's version makes everything require grad, and fails on None and numbers."""
    pair = twins(Module(shape).to(device), rand(device, 3, 4, requires_grad=True), outputs=outputs)
    exact = device == "cpu" or shape is not SHAPES["transposed"]
    for _ in range(3):
        pair.step(rand(device, 3, 4, requires_grad=True), exact=exact)
    with torch.no_grad():
        pair.call(rand(device, 3, 4))
    assert pair.counts.eager == 0


def test_an_input_a_parameter_and_a_buffer_come_back_as_themselves(device):
    module = Module(lambda m, x, y: (x, m.linear.weight, m.table, y)).to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4, requires_grad=True),))
    x = rand(device, 3, 4, requires_grad=True)
    result = module(x)
    assert result[0] is x
    assert result[1] is module.linear.weight
    assert result[2] is module.table


def test_one_result_twice_is_one_tensor(device):
    module = Module(SHAPES["twice"]).to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4),))
    first, second = module(rand(device, 3, 4))
    assert first is second


def test_results_do_not_change_under_their_holder(device):
    """B6 and law 6."""
    module = Module(SHAPES["tuple"]).to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4),))
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            held = []
            for _ in range(5):
                x = rand(device, 3, 4)
                held.append((x, module(x)))
            for x, results in held:
                y = nn.functional.linear(x, module.linear.weight, module.linear.bias)
                assert torch.equal(results[0], y)
                assert torch.equal(results[1], y * 2)


def test_results_outlive_the_graphs(device):
    module = Module(SHAPES["tensor"]).to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4),))
    x = rand(device, 3, 4)
    y = module(x)
    before = y.detach().clone()
    tp.release(module)
    assert torch.equal(y, before)


def test_results_may_be_changed_by_their_holder(device):
    module = Module(SHAPES["tuple"]).to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4, requires_grad=True),))
    x = rand(device, 3, 4, requires_grad=True)
    expected = module.linear(x)
    y, _ = module(x)
    y.mul_(3)
    assert torch.equal(y, expected * 3)
    y.sum().backward()
    (wanted,) = torch.autograd.grad((expected * 3).sum(), x)
    assert torch.equal(x.grad, wanted)
    assert torch.equal(module(x)[0], expected)


def test_aliases_are_the_graph_s_own_memory(device):
    module = Module(SHAPES["tensor"]).to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4),), outputs="alias")
    with torch.no_grad():
        a, b = rand(device, 3, 4), rand(device, 3, 4)
        first = module(a)
        second = module(b)
        assert first.data_ptr() == second.data_ptr()
        assert first is not second
        assert torch.equal(first, module.linear(b))


def test_an_alias_that_a_backward_still_needs_is_not_overwritten(device):
    module = Module(SHAPES["tensor"]).to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4),), outputs="alias")
    x = rand(device, 3, 4)
    y = module(x)
    kept = y.detach().clone()
    with pytest.raises(tp.StaleGraph, match="aliases") as caught:
        module(rand(device, 3, 4))
    assert "slots=N" in caught.value.remedy
    assert torch.equal(y, kept)
    y.square().sum().backward()
    wanted = torch.autograd.grad(module.linear(x).square().sum(), module.linear.weight)[0]
    assert torch.equal(module.linear.weight.grad, wanted)
    module(rand(device, 3, 4))
    y = module(rand(device, 3, 4))
    del y
    module(rand(device, 3, 4))


def test_a_backward_that_saved_an_overwritten_alias_is_refused(device):
    """Whoever saved the alias would read another call's values: autograd counts the write."""
    module = Module(SHAPES["tensor"]).to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4),), outputs="alias")
    weight = rand(device, 4, 4, requires_grad=True)
    with torch.no_grad():
        y = module(rand(device, 3, 4))
    z = y @ weight
    with torch.no_grad():
        module(rand(device, 3, 4))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_aliases_with_slots_are_several_memories(device):
    module = Module(SHAPES["tensor"]).to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4),), outputs="alias", slots=2)
    xs = [rand(device, 3, 4) for _ in range(2)]
    ys = [module(x) for x in xs]
    for x, y in zip(xs, ys, strict=True):
        assert torch.equal(y, module.linear(x))
    with pytest.raises(tp.StaleGraph, match="all 2 of its slots"):
        module(xs[0])
    wanted = torch.autograd.grad(
        sum(module.linear(x).square().sum() for x in xs), module.linear.weight
    )[0]
    sum(y.square().sum() for y in ys).backward()
    assert torch.equal(module.linear.weight.grad, wanted)


@pytest.mark.parametrize(
    ("shape", "met"),
    [
        (lambda m, x, y: y.to_sparse(), "sparse|strided"),
        (lambda m, x, y: (y, torch.zeros(2, device="meta")), r"output\[1\] is on meta"),
        (
            lambda m, x, y: {"y": y, "leaf": torch.zeros(2, device=x.device, requires_grad=True)},
            r"output\['leaf'\] is a leaf",
        ),
    ],
)
def test_results_that_no_graph_gives_are_refused(device, shape, met):
    module = Module(shape).to(device)
    with pytest.raises(tp.CaptureError, match=met):
        tp.make_graphed_callables(module, (rand(device, 3, 4),))
    assert "forward" not in vars(module)


@pytest.mark.gpu
def test_a_result_on_another_device_is_refused():
    module = Module(lambda m, x, y: (y, torch.zeros(3))).cuda()
    with pytest.raises(tp.CaptureError, match=r"output\[1\] is on cpu, the graph on cuda:0"):
        tp.make_graphed_callables(module, (rand("cuda", 3, 4),))


def test_a_callable_that_computes_nothing_is_refused(device):
    """Results from a cache, or from a stream or device that is not captured, would be stale."""
    cache = {}

    def cached(x):
        if "y" not in cache:
            cache["y"] = x * 2
        return cache["y"]

    with pytest.raises(tp.EmptyCapture, match="nothing was recorded"):
        tp.make_graphed_callables(cached, (rand(device, 3),))


def test_a_callable_that_hands_back_its_input_needs_no_graph(device):
    graphed = tp.make_graphed_callables(lambda x: x, (rand(device, 3, requires_grad=True),))
    x = rand(device, 3, requires_grad=True)
    assert graphed(x) is x


def test_parameterless_callables_with_and_without_grad(device):
    """B20 and torch issue 124582."""

    class Scale(nn.Module):
        def forward(self, x):
            return {"output": torch.gather(x, 0, torch.zeros_like(x, dtype=torch.long))}

    for requires_grad in (False, True):
        for grad_mode in (False, True):
            module = Scale().to(device)
            x = rand(device, 3, 4, requires_grad=requires_grad)
            with torch.set_grad_enabled(grad_mode):
                expected = module(x)["output"]
                tp.make_graphed_callables(module, (x,))
                result = module(x)["output"]
            assert torch.equal(result, expected)
            assert result.requires_grad == (requires_grad and grad_mode)


def test_a_callable_without_arguments(device):
    table = rand(device, 3)

    def doubled():
        return table * 2

    graphed = tp.make_graphed_callables(doubled, ())
    assert torch.equal(graphed(), table * 2)
    table.fill_(5)
    assert torch.equal(graphed(), table * 2)
