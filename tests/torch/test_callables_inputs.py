"""Arguments of graphed callables: any nesting, compared by path, never reordered or broadcast."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .callables import rand

Pair = namedtuple("Pair", "left right")


@dataclass
class Batch:
    tokens: torch.Tensor
    mask: torch.Tensor | None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Frozen:
    value: torch.Tensor
    parts: tuple[Any, ...] = field(default=())


def differences(caught):
    return caught.value.differences


def test_keyword_arguments_are_inputs_too(device, twins):
    """B3: torch's version takes them in one mode and raises TypeError in the other."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, mask=None, *, scale=1.0):
            y = self.linear(x) * scale
            return y if mask is None else y * mask

    pair = twins(
        Module().to(device),
        rand(device, 3, 4, requires_grad=True),
        sample_kwargs={"mask": rand(device, 3, 4), "scale": 2.0},
    )
    for _ in range(2):
        pair.step(rand(device, 3, 4, requires_grad=True), mask=rand(device, 3, 4), scale=2.0)
        pair.step(rand(device, 3, 4, requires_grad=True), scale=2.0, mask=rand(device, 3, 4))
    pair.graphed.eval()
    pair.eager.eval()
    pair.call(rand(device, 3, 4), scale=0.5)


def test_an_argument_may_be_given_by_name_or_by_position(device):
    def sub(x, y, *, z):
        return x - y - z

    a, b, c = (rand(device, 3) for _ in range(3))
    graphed = tp.make_graphed_callables(sub, (a, b), sample_kwargs={"z": c})
    assert torch.equal(graphed(b, a, z=c), b - a - c)
    assert torch.equal(graphed(y=b, x=a, z=c), a - b - c)
    assert torch.equal(graphed(a, z=b, y=c), a - c - b)


def test_dicts_are_matched_by_key(device):
    """B4: torch's version takes values in the order of insertion and swaps them silently."""

    def weighted(batch):
        return batch["a"] * 2 + batch["b"]

    a, b = rand(device, 3), rand(device, 3)
    graphed = tp.make_graphed_callables(weighted, ({"a": a, "b": b},))
    assert torch.equal(graphed({"b": b, "a": a}), a * 2 + b)
    assert torch.equal(graphed({"a": b, "b": a}), b * 2 + a)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x, y: (x, [y]),
        lambda x, y: [x, (y, 7)],
        lambda x, y: {"x": x, "y": {"y": y}},
        lambda x, y: OrderedDict(x=x, y=y),
        lambda x, y: defaultdict(list, x=x, y=y),
        lambda x, y: Pair(x, Pair(y, None)),
        lambda x, y: Batch(x, y, scale=3.0),
        lambda x, y: Batch(x, None),
        lambda x, y: Frozen(x, (y, "tag")),
        lambda x, y: {"nothing": None, "x": (), "y": [x, [y, {}]]},
        lambda x, y: torch.max(x, 0),
    ],
)
def test_any_nesting_goes_in_and_comes_out(device, wrap):
    def tensors(value):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            for one in value.values():
                yield from tensors(one)
        elif isinstance(value, Batch):
            yield from tensors([value.tokens, value.mask])
        elif isinstance(value, Frozen):
            yield from tensors([value.value, value.parts])
        elif isinstance(value, tuple | list):
            for one in value:
                yield from tensors(one)

    def work(value):
        return sum(one.sum() * n for n, one in enumerate(tensors(value), 1)), value

    x, y = rand(device, 3, 4), rand(device, 3, 4)
    graphed = tp.make_graphed_callables(work, (wrap(x, y),))
    for _ in range(2):
        given = wrap(rand(device, 3, 4), rand(device, 3, 4))
        total, same = graphed(given)
        assert torch.equal(total, work(given)[0])
        assert type(same) is type(given)
        assert all(one is other for one, other in zip(tensors(same), tensors(given), strict=True))


def test_every_difference_is_listed_by_its_path(device):
    """B4 and law 4: nothing broadcasts, casts, moves or reorders by accident."""

    def work(x, batch, *, flag):
        return x + batch["mask"].sum() + batch["pair"].left.sum()

    x = rand(device, 8, 16)
    batch = {"mask": rand(device, 8, 16), "pair": Pair(rand(device, 2), 5)}
    graphed = tp.make_graphed_callables(work, (x, batch), sample_kwargs={"flag": True})
    with pytest.raises(tp.SignatureMismatch) as caught:
        graphed(
            rand(device, 8, 16).double(),
            {"mask": rand(device, 8, 12), "pair": Pair(rand(device, 2, requires_grad=True), 5.0)},
            flag=1,
        )
    assert list(differences(caught)) == [
        "args[0].dtype: captured torch.float32, got torch.float64",
        "args[1]['mask'].shape: captured (8, 16), got (8, 12)",
        "args[1]['pair'].left.requires_grad: captured False, got True",
        "args[1]['pair'].right: captured 5, got 5.0",
        "kwargs['flag']: captured True, got 1",
    ]
    assert isinstance(caught.value, ValueError)


def test_differences_of_structure_are_listed_by_their_path(device):
    def work(x, extra):
        return x * 2

    x = rand(device, 2)
    graphed = tp.make_graphed_callables(work, (x, {"a": x, "b": [x, None]}))
    for extra, lines in [
        ({"a": x}, ["args[1]['b']: captured, not given"]),
        (
            {"a": x, "b": [x, None], "c": 1},
            ["args[1]['c']: given, not captured"],
        ),
        ({"a": x, "b": (x, None)}, ["args[1]['b']: captured a list, got a tuple"]),
        ({"a": x, "b": [x]}, ["args[1]['b'][1]: captured, not given"]),
        ({"a": x, "b": [x, x]}, ["args[1]['b'][1]: captured None, got a Tensor"]),
        ({"a": None, "b": [x, None]}, ["args[1]['a']: captured a tensor, got NoneType"]),
        ({"a": [x], "b": [x, None]}, ["args[1]['a']: captured a single value, got a list"]),
        (OrderedDict(a=x, b=[x, None]), ["args[1]: captured a dict, got an OrderedDict"]),
    ]:
        with pytest.raises(tp.SignatureMismatch) as caught:
            graphed(x, extra)
        assert list(differences(caught)) == lines
    with pytest.raises(tp.SignatureMismatch) as caught:
        graphed(x)
    assert list(differences(caught)) == ["args[1]: captured, not given"]
    with pytest.raises(tp.SignatureMismatch) as caught:
        graphed(x, {"a": x, "b": [x, None]}, x)
    assert list(differences(caught)) == ["args[2]: given, not captured"]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_are_compared_strictly(device, requires_grad):
    """B4: shapes that broadcast, dtypes that cast, strides and devices that copy."""
    module = nn.Linear(4, 4).to(device)
    x = rand(device, 6, 4, requires_grad=requires_grad)
    tp.make_graphed_callables(module, (x,))
    counts = module.forward.counts

    def like(tensor):
        return tensor.detach().requires_grad_(requires_grad)

    others = {
        "args[0].shape: captured (6, 4), got (1, 4)": like(x[:1]),
        "args[0].shape: captured (6, 4), got (4,)": like(x[0]),
        "args[0].dtype: captured torch.float32, got torch.float16": like(x.half()),
        "args[0].stride: captured (4, 1), got (1, 6)": like(x.t().contiguous().t()),
        f"args[0].requires_grad: captured {requires_grad}, got {not requires_grad}": x.detach()
        .clone()
        .requires_grad_(not requires_grad),
        "args[0]: captured a tensor, got float": 1.0,
        "args[0]: captured a tensor, got ndarray": numpy.zeros((6, 4), "float32"),
        "args[0].layout: captured torch.strided, got torch.sparse_coo": x.detach().to_sparse(),
    }
    for line, other in others.items():
        with pytest.raises(tp.SignatureMismatch) as caught:
            module(other)
        assert line in differences(caught)
    assert module.forward.counts == counts
    expected = nn.functional.linear(x, module.weight, module.bias)
    assert torch.equal(module(x), expected)


@pytest.mark.gpu
def test_a_tensor_of_another_device_is_refused():
    module = nn.Linear(4, 4).cuda()
    tp.make_graphed_callables(module, (torch.ones(2, 4, device="cuda"),))
    with pytest.raises(tp.SignatureMismatch, match=r"device: captured cuda:0, got cpu"):
        module(torch.ones(2, 4))


def test_whether_inputs_require_grad_matters_only_with_grad_mode_on(device):
    module = nn.Linear(4, 4).to(device)
    x = rand(device, 6, 4)
    expected = module(x)
    tp.make_graphed_callables(module, (x.clone().requires_grad_(),))
    with torch.no_grad():
        assert torch.equal(module(x), expected)
        assert torch.equal(module(x.clone().requires_grad_()), expected)
    with torch.inference_mode():
        result = module(x)
    assert result.is_inference()
    assert torch.equal(result, expected)


def test_an_input_s_stride_of_extent_one_is_no_difference(device):
    def work(x):
        return x + 1

    x = rand(device, 1, 4)
    graphed = tp.make_graphed_callables(work, (x,))
    other = rand(device, 4, 1).t()
    assert torch.equal(graphed(other), other + 1)


def test_a_parameter_may_be_an_input(device):
    def work(x, weight):
        return x @ weight

    weight = nn.Parameter(rand(device, 4, 4))
    graphed = tp.make_graphed_callables(work, (rand(device, 2, 4), weight))
    x = rand(device, 2, 4)
    loss = graphed(x, weight).square().sum()
    loss.backward()
    wanted = torch.autograd.grad((x @ weight).square().sum(), weight)[0]
    assert torch.equal(weight.grad, wanted)


def test_the_buffers_are_the_library_s_own(device):
    """torch's version makes the sample tensors themselves its static buffers."""
    sample = rand(device, 3, 4)
    before = sample.clone()

    def work(x):
        return x * 2

    graphed = tp.make_graphed_callables(work, (sample,))
    x = rand(device, 3, 4)
    assert torch.equal(graphed(x), x * 2)
    assert torch.equal(sample, before)
    sample.zero_()
    assert torch.equal(graphed(x), x * 2)
    assert torch.equal(graphed(sample), sample)


def test_one_tensor_may_stand_for_several_inputs(device):
    def work(x, y):
        return x * 2 + y * y

    x, y = rand(device, 3, requires_grad=True), rand(device, 3, requires_grad=True)
    graphed = tp.make_graphed_callables(work, (x, y))
    z = rand(device, 3, requires_grad=True)
    result = graphed(z, z)
    assert torch.equal(result, work(z, z))
    (found,) = torch.autograd.grad(result.sum(), z)
    (wanted,) = torch.autograd.grad(work(z, z).sum(), z)
    assert torch.equal(found, wanted)


@pytest.mark.usefixtures("exact")
def test_one_tensor_in_several_places_stays_one(device):
    """Attention takes other ways where query, key and value are one tensor."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(64, 4, batch_first=True).to(device)
    eager = copy.deepcopy(attention)
    x = rand(device, 4, 33, 64, requires_grad=True)
    graphed = tp.make_graphed_callables(attention, (x, x, x))
    y = x.detach().clone().requires_grad_()
    for _ in range(2):
        graphed(x, x, value=x)[0].square().sum().backward()
        eager(y, y, value=y)[0].square().sum().backward()
    assert torch.equal(x.grad, y.grad)
    for ours, theirs in zip(graphed.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    with pytest.raises(tp.SignatureMismatch) as caught:
        graphed(x, x, y)
    assert differences(caught) == ("args[2]: captured as the same tensor as args[0], got another",)


def test_results_may_be_inputs_of_the_next_call(device):
    def work(x):
        return x * 2

    graphed = tp.make_graphed_callables(work, (rand(device, 3),))
    x = torch.ones(3, device=device)
    for n in range(1, 6):
        x = graphed(x)
        assert torch.equal(x, torch.full((3,), 2.0**n, device=device))
