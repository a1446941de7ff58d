"""Changes of what callables read beside their arguments are noticed; others are none."""

from __future__ import annotations

import functools
import gc
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import tensorplay_torch as tp
from tensorplay_core.errors import StaleGraph
from tensorplay_torch.compiled import parts
from tensorplay_torch.graphing import registrations
from tensorplay_torch.graphing.watch import FEW

SCALE = 2.0
LIMITS = {"low": 0.25, "pair": [1.0, 2.0]}


def rand(device, *shape, **options):
    return torch.rand(*shape, device=device, **options)


class Settings:
    factor = 1.0


class Layer(nn.Module):
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.register_buffer("offset", torch.zeros(4))
        self.mask = torch.ones(4)
        self.masks = [torch.ones(4), torch.ones(4)]
        self.table = {"a": {"b": torch.ones(4)}}
        self.config = SimpleNamespace(scale=1.0, unused=1.0)

    def _apply(self, fn, recurse=True):
        self.mask, self.masks = fn(self.mask), list(map(fn, self.masks))
        self.table = {"a": {"b": fn(self.table["a"]["b"])}}
        return super()._apply(fn, recurse)

    def forward(self, x):
        y = self.inner(x) + self.offset
        y = y * self.mask * self.masks[1] * self.table["a"]["b"]
        return y * self.config.scale * self.factor * SCALE * LIMITS["low"]


AT_ONCE = {
    "a parameter": lambda m, d: setattr(m.inner, "weight", nn.Parameter(rand(d, 4, 4))),
    "a parameter for None": lambda m, d: setattr(m.inner, "bias", nn.Parameter(rand(d, 4))),
    "a buffer": lambda m, d: setattr(m, "offset", rand(d, 4)),
    "a submodule": lambda m, d: setattr(m, "inner", nn.Linear(4, 4, device=d)),
    "a parametrization": lambda m, d: weight_norm(m.inner),
}
IN_TURN = {
    "a tensor": lambda m, d: setattr(m, "mask", rand(d, 4)),
    "a tensor in a list": lambda m, d: m.masks.__setitem__(1, rand(d, 4)),
    "a longer list": lambda m, d: m.masks.insert(0, rand(d, 4)),
    "a tensor in dicts": lambda m, d: m.table["a"].__setitem__("b", rand(d, 4)),
    "an object's attribute": lambda m, d: setattr(m.config, "scale", 3.0),
    "another object": lambda m, d: setattr(m, "config", SimpleNamespace(scale=3.0, unused=1.0)),
    "an attribute": lambda m, d: setattr(m, "factor", 3.0),
}


def changes(device, grad, change, calls):
    module = tp.make_graphed_callables(Layer().to(device), (rand(device, 2, 4),))
    x = rand(device, 2, 4)
    with torch.set_grad_enabled(grad):
        for _ in range(300):
            module(x)
        change(module, device)
        with pytest.raises(tp.StaleGraph) as caught:
            for _ in range(calls):
                module(x)
    return str(caught.value)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("change", AT_ONCE.values(), ids=AT_ONCE)
def test_what_is_set_on_a_module_is_noticed_by_the_next_call(device, grad, change):
    changes(device, grad, change, 1)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("change", IN_TURN.values(), ids=IN_TURN)
def test_what_a_forward_reads_by_name_is_noticed_in_turn(device, grad, change):
    changes(device, grad, change, 20 if grad else 320)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SCALE", 3.0), ("LIMITS", {"low": 0.5, "pair": [1.0, 2.0]})],
)
def test_globals_of_a_forward_are_noticed(device, monkeypatch, name, value):
    met = changes(device, True, lambda m, d: monkeypatch.setitem(globals(), name, value), 20)
    assert f"global {name}" in met


def test_attributes_of_classes_and_modules_are_noticed(device, monkeypatch):
    f = tp.graphed(lambda x: x * Settings.factor)
    x = rand(device, 4)
    f(x)
    monkeypatch.setattr(Settings, "factor", 3.0)
    with pytest.raises(tp.StaleGraph, match=r"Settings.factor is 3.0, was 1.0"):
        for _ in range(320):
            f(x)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(sub=SimpleNamespace(scale=1.0))
        self.parts = [SimpleNamespace(factor=1.0)]
        self.pair = (1.0, [1.0])
        self.last = functools.partial(torch.mul, other=1.0)

    def forward(self, x):
        y = x * self.config.sub.scale * self.parts[0].factor * self.pair[1][0]
        return self.last(y)


DEEP = {
    "config.sub.scale": lambda m: setattr(m.config.sub, "scale", 3.0),
    "parts[0].factor": lambda m: setattr(m.parts[0], "factor", 3.0),
    "pair[1][0]": lambda m: m.pair[1].__setitem__(0, 3.0),
    "['other']": lambda m: m.last.keywords.__setitem__("other", 3.0),
}


@pytest.mark.parametrize("name", DEEP)
def test_what_objects_and_tuples_hold_is_noticed(device, name):
    module, x = Nested(), rand(device, 2, 4)
    tp.make_graphed_callables(module, (x,))
    module(x)
    DEEP[name](module)
    with pytest.raises(tp.StaleGraph, match=re.escape(name)):
        for _ in range(200):
            module(x)


def test_values_that_are_as_good_are_no_changes(device):
    module = tp.make_graphed_callables(Layer().to(device), (rand(device, 2, 4),))
    x = rand(device, 2, 4)
    for step in range(60):
        module.masks = list(module.masks)
        module.table = {"a": dict(module.table["a"]), f"more {step}": 1}
        module.config.unused = step
        module.offset.fill_(step)
        module.note = step
        module(x)
    assert module.forward.counts == (60, 0, 1)


def test_an_assigned_parameter_is_followed_by_a_capture_anew(device):
    x = rand(device, 2, 4)
    module = tp.make_graphed_callables(
        nn.Linear(4, 4, bias=False, device=device), (x,), on_change="recapture"
    )
    for _ in range(3):
        module.weight = nn.Parameter(rand(device, 4, 4))
        assert torch.equal(module(x), x @ module.weight.T)
        module.weight.data = rand(device, 4, 4)
        assert torch.equal(module(x), x @ module.weight.T)


def test_nothing_is_kept_for_modules_that_are_gone(device):
    gc.collect()
    before = len(registrations._hearing)
    module = tp.make_graphed_callables(Layer().to(device), (rand(device, 2, 4),))
    assert len(registrations._hearing) > before
    tp.release(module)
    del module
    gc.collect()
    assert len(registrations._hearing) == before


def test_the_default_dtype_is_compared(device):
    f = tp.graphed(lambda x: torch.ones(4, device=x.device) / 2)
    x = rand(device, 4)
    assert f(x).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(tp.SignatureMismatch, match=r"default dtype: captured torch\.float32"):
            f(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert f(x).dtype == torch.float32


def scaled(settings, x):
    return x * settings["scale"]


IN_PLACE = {
    "an argument of a partial": lambda one: functools.partial(scaled, one),
    "a keyword of a partial": lambda one: functools.partial(lambda x, s: x * s["scale"], s=one),
    "a default": lambda one: lambda x, settings=one: x * settings["scale"],
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_what_stands_ready_for_arguments_is_watched(device, kind):
    settings, x = {"scale": 1.0}, torch.rand(4, device=device)
    graphed = tp.graphed(IN_PLACE[kind](settings))
    assert torch.equal(graphed(x), x)
    settings["scale"] = 2.0
    with pytest.raises(tp.StaleGraph, match=r"\['scale'\] is another"):
        for _ in range(200):
            graphed(x)


MOVES = {
    "data": lambda tensor: setattr(tensor, "data", torch.zeros_like(tensor)),
    "resize_": lambda tensor: tensor.resize_(4096),
}


@pytest.mark.parametrize("kind", MOVES)
def test_a_tensor_found_by_name_that_moved_is_noticed(device, kind):
    weight, x = torch.ones(4, device=device), torch.rand(4, device=device)
    graphed = tp.graphed(lambda x: x * weight[:4])
    assert torch.equal(graphed(x), x)
    # What would be at the old address otherwise.
    kept = weight.detach()
    MOVES[kind](weight)
    with pytest.raises(tp.StaleGraph, match="weight moved to other memory"):
        for _ in range(200):
            graphed(x)
    assert kept.numel()


@pytest.mark.parametrize("grad", [True, False])
def test_parameters_that_change_names_are_noticed(device, grad):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.full((4,), 2.0, device=device))
            self.b = nn.Parameter(torch.full((4,), 5.0, device=device))

        def forward(self, x):
            return x * self.a + self.b

    module = Scaled()
    x = torch.ones(4, device=device, requires_grad=True)
    tp.make_graphed_callables(module, (x,))
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            module(x)
        held = module._parameters
        a, b = held.pop("a"), held.pop("b")
        held["b"], held["a"] = a, b
        with pytest.raises(tp.StaleGraph):
            for _ in range(4):
                module(x)


@pytest.mark.parametrize("place", [0, 1])
def test_another_forward_of_a_library_s_module_is_noticed(device, place):
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(device)
    x = torch.ones(2, 3, device=device, requires_grad=True)
    tp.make_graphed_callables(module, (x,))
    module(x)
    before = module[place].forward
    module[place].forward = lambda x: before(x) + 1
    with pytest.raises(tp.StaleGraph, match="forward"):
        for _ in range(10):
            module(x)


@pytest.mark.skipif(parts() is None, reason="the compiled parts are not in use")
@pytest.mark.parametrize("count", [FEW - 1, FEW, 4 * FEW])
def test_of_few_tensors_each_call_without_gradients_looks_at_all(device, count):
    weights = nn.ParameterList([nn.Parameter(rand(device, 2)) for _ in range(count)])
    module = nn.Module()
    module.weights = weights
    module.forward = lambda x: x * sum(weights)
    with torch.no_grad():
        graphed = tp.make_graphed_callables(module, (rand(device, 2),))
        x = rand(device, 2)
        for _ in range(3):
            graphed(x)
        weights[-1].data = rand(device, 2)
        calls = 0
        with pytest.raises(StaleGraph, match=rf"weights.{count - 1}"):
            for _ in range(20 * count):
                graphed(x)
                calls += 1
    assert (calls == 0) is (count <= FEW)
