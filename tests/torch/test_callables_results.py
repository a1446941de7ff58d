"""What callables may return: containers, tensors and constants; other objects are refused."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.utils import _pytree  # noqa: TID251

import tensorplay_torch as tp


def rand(device, *shape, **options):
    return torch.rand(*shape, device=device, **options)


class Box:
    def __init__(self, tensor):
        self.tensor = tensor


class Pages(list):
    pass


def generator(x):
    yield x * 2


def closure(x):
    y = x * 2
    return lambda: y


OBJECTS = {
    "an object with a tensor": (lambda x: Box(x * 2), r"output is a \S+\.Box,"),
    "in a container": (lambda x: {"a": [x, Box(x * 2)]}, r"output\['a'\]\[1\] is a \S+\.Box,"),
    "a module": (lambda x: (x * 2, nn.Linear(1, 1)), r"output\[1\] is a \S+\.Linear,"),
    "a distribution": (
        lambda x: torch.distributions.Normal(x, x + 1, validate_args=False),
        r"output is a torch.distributions.normal.Normal,",
    ),
    "a closure": (closure, r"output is a builtins.function,"),
    "a generator": (generator, r"output is a builtins.generator,"),
    "a set": (lambda x: {x * 2}, r"output is a builtins.set,"),
    "an array": (lambda x: (x * 2, numpy.zeros(2)), r"output\[1\] is a numpy.ndarray,"),
    "a kind of list": (lambda x: Pages([x * 2]), r"output is a \S+\.Pages,"),
    "a tensor as a key": (lambda x: {x * 2: 1}, r"a key of output is a torch.Tensor,"),
}


@pytest.mark.parametrize(("function", "met"), OBJECTS.values(), ids=OBJECTS)
@pytest.mark.parametrize("warmup", [0, 2])
def test_objects_that_each_call_makes_anew_are_refused_by_name(device, function, met, warmup):
    x = rand(device, 4)
    with pytest.raises(tp.CaptureError, match=met):
        tp.make_graphed_callables(function, (x,), num_warmup_iters=warmup)


def test_modules_and_objects_from_before_come_back_as_themselves(device):
    layer, settings = nn.Linear(4, 4, device=device), SimpleNamespace(scale=2.0)

    @tp.graphed
    def f(x):
        return layer(x) * settings.scale, layer, settings, torch.relu, "name", None

    x = rand(device, 2, 4)
    for _ in range(3):
        result, *rest = f(x)
        assert torch.equal(result, layer(x) * 2)
        assert rest == [layer, settings, torch.relu, "name", None]


def test_registered_classes_are_containers(device):
    _pytree.register_pytree_node(Box, lambda box: ([box.tensor], None), lambda v, _: Box(*v))
    try:
        f = tp.graphed(lambda x: Box(x * 2))
        x = rand(device, 4)
        first, second = f(x), f(x + 1)
        assert torch.equal(first.tensor, x * 2)
        assert torch.equal(second.tensor, (x + 1) * 2)
    finally:
        del _pytree.SUPPORTED_NODES[Box]


@dataclass
class Outcome:
    value: torch.Tensor

    def __post_init__(self):
        self.doubled = self.value * 2


def test_dataclasses_keep_what_they_set_beside_their_fields(device):
    f = tp.graphed(lambda given: Outcome(given.doubled + given.value))
    x = rand(device, 4)
    for one in (x, x + 1):
        result = f(Outcome(one))
        assert torch.equal(result.value, one * 2 + one)
        assert torch.equal(result.doubled, (one * 2 + one) * 2)
    extended = Outcome(x)
    extended.note = 1
    with pytest.raises(tp.SignatureMismatch, match="note: given, not captured"):
        f(extended)


def test_a_module_that_is_a_dataclass_is_a_module(device):
    @dataclass(eq=False)
    class Scale(nn.Module):
        factor: float

        def __post_init__(self):
            super().__init__()

        def forward(self, x):
            return x * self.factor, self

    scale = Scale(3.0)
    x = rand(device, 4)
    graphed = tp.make_graphed_callables(scale, (x,))
    result, itself = graphed(x)
    assert itself is scale
    assert torch.equal(result, x * 3)
