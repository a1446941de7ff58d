"""Copies, hooks, attributes that a forward sets, and modules inside others."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm
from torch.nn.utils.parametrizations import spectral_norm as parametrized_spectral_norm
from torch.nn.utils.parametrizations import weight_norm as parametrized_weight_norm

import tensorplay_torch as tp
from tensorplay_torch.graphing import candidate, entries
from tensorplay_torch.tracking.code import Mentions
from tests.equality import assert_all_equal

from .callables import leaf, rand


def test_copies_and_pickles_are_without_graphs(device):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device)
    tp.make_graphed_callables(module, (leaf(device),))
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    whole = nn.ModuleDict({"inner": module, "other": nn.Linear(4, 4).to(device)})
    copies = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
        copy.deepcopy(whole)["inner"],
    ]
    x = leaf(device)
    expected = module(x)
    for other in copies:
        assert torch.equal(other(x), expected)
        with torch.no_grad():
            other[0].weight.add_(1)
        assert not torch.equal(other(x), expected)
        assert torch.equal(module(x), expected)
        tp.make_graphed_callables(other, (x,))
        assert torch.equal(other(x), nn.functional.relu(other[0](x)))
        tp.release(other)
        assert "forward" not in vars(other)
    assert module.forward.counts.eager == 0


def test_hooks_of_the_module_itself_run_at_every_call(device):
    module = nn.Linear(4, 4).to(device)
    calls = []
    module.register_forward_pre_hook(lambda m, args: calls.append("pre"))
    tp.make_graphed_callables(module, (leaf(device),))
    module.register_forward_hook(lambda m, args, result: calls.append("post") or result * 2)
    module.register_full_backward_hook(lambda m, gi, go: calls.append("back"))
    assert calls == []
    for _ in range(2):
        x = leaf(device)
        y = module(x)
        y.sum().backward()
        assert torch.equal(y, nn.functional.linear(x, module.weight, module.bias) * 2)
    assert calls == ["pre", "post", "back"] * 2


@pytest.mark.parametrize(
    ("register", "kind"),
    [
        (lambda m: m.register_forward_hook(lambda *_: None), "forward hook"),
        (lambda m: m.register_forward_pre_hook(lambda *_: None), "forward pre-hook"),
        (lambda m: m.register_full_backward_hook(lambda *_: None), "backward hook"),
        (lambda m: m.register_full_backward_pre_hook(lambda *_: None), "backward pre-hook"),
    ],
)
def test_hooks_inside_are_refused_by_name(device, register, kind):
    """B12: they would run at the capture and never again."""
    module = nn.Sequential(nn.ModuleList([nn.Linear(4, 4)])[0], nn.ReLU()).to(device)
    handle = register(module[0])
    with pytest.raises(tp.CaptureError, match=rf"0 \(Linear\) has a {kind} \(.*<lambda>\)"):
        tp.make_graphed_callables(module, (leaf(device),))
    handle.remove()
    tp.make_graphed_callables(module, (leaf(device),))


def test_hooks_for_all_modules_are_refused(device):
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(tp.CaptureError, match="hooks for all modules"):
            tp.make_graphed_callables(nn.Linear(4, 4).to(device), (leaf(device),))
    finally:
        handle.remove()


@pytest.mark.filterwarnings("ignore:.*torch.nn.utils.weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "make", [spectral_norm, weight_norm, lambda m: prune.random_unstructured(m, "weight", 0.5)]
)
def test_reparametrization_by_hooks_is_refused_with_the_remedy(device, make):
    module = nn.Sequential(make(nn.Linear(4, 4))).to(device)
    with pytest.raises(tp.CaptureError, match="pre-hook") as caught:
        tp.make_graphed_callables(module, (leaf(device),))
    assert "parametrizations" in caught.value.remedy
    assert "prune.remove" in caught.value.remedy


@pytest.mark.parametrize("make", [parametrized_weight_norm, parametrized_spectral_norm])
def test_parametrizations_train_as_eager(device, twins, make):
    pair = twins(make(nn.Linear(4, 4)).to(device), leaf(device))
    for _ in range(3):
        pair.step(leaf(device))


REBINDING = {
    "an attribute": ("self.last = y", "last"),
    "a counter": ("self.calls += 1", "calls"),
    "a list": ("self.seen.append(y)", r"seen\[\d\]"),
    "a dict": ("self.by_name['y'] = y", r"by_name\['y'\]"),
    "a buffer": ("self.state = y.detach()", r"_buffers\['state'\]"),
    "a parameter's gradient": (
        "self.linear.weight.grad = torch.ones_like(self.linear.weight)",
        "grad",
    ),
}


@pytest.mark.parametrize(("statement", "name"), REBINDING.values(), ids=REBINDING)
def test_rebinding_in_forward_is_refused_by_name(device, statement, name):
    """A replay runs no Python: what it set would be the capture's for ever."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("state", torch.zeros(6, 4))
            self.calls, self.seen, self.by_name = 0, [], {}

        def forward(self, x):
            y = self.linear(x)
            exec(statement)
            return y

    module = Module().to(device)
    before = dict(vars(module))
    with pytest.raises(tp.OperationRefused, match=name):
        tp.make_graphed_callables(module, (leaf(device),))
    assert vars(module) == before
    assert module.seen == []
    assert module.by_name == {}
    assert module.linear.weight.grad is None


def test_rebinding_on_the_object_of_a_method_is_refused(device):
    class Trainer:
        def __init__(self):
            self.last, self.history = None, []

        def step(self, x):
            self.last = x * 2
            self.history.append(1)
            return self.last + 1

    trainer = Trainer()
    with pytest.raises(
        tp.OperationRefused, match=r"sets self.history\[\d\], self.last in each call"
    ):
        tp.make_graphed_callables(trainer.step, (rand(device, 3),))
    assert trainer.last is None
    assert trainer.history == []


def test_what_only_the_first_call_sets_is_fine(device, twins):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.table = None
            self.tables = {}

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(4.0, device=x.device)
            key = x.shape[1]
            if key not in self.tables:
                self.tables[key] = torch.ones(key, device=x.device) * 3
            return self.linear(x) * self.table + self.tables[key]

    pair = twins(Cached().to(device), leaf(device))
    assert pair.graphed.table is None
    assert pair.graphed.tables == {}
    for _ in range(2):
        pair.step(leaf(device))
    with pytest.raises(tp.OperationRefused, match="num_warmup_iters ≥ 1"):
        tp.make_graphed_callables(Cached().to(device), (leaf(device),), num_warmup_iters=0)


def test_warm_ups_leave_nothing_behind(device):
    """B11: torch's version keeps the last warm-up's results through the capture."""
    made = []
    # A method of a list is no variable of the function's, so that what it keeps is not looked at.
    note = made.append

    def work(x):
        y = x * 2
        note(weakref.ref(y))
        return y.relu()

    gc.disable()
    try:
        tp.make_graphed_callables(work, (leaf(device),), num_warmup_iters=4)
        assert [one() for one in made[:4]] == [None] * 4
    finally:
        gc.enable()


def test_lazy_modules_are_refused_until_they_are_made(device):
    module = nn.LazyLinear(4).to(device)
    with pytest.raises(tp.ArgumentError, match="weight has no shape yet"):
        tp.make_graphed_callables(module, (leaf(device),))
    module(leaf(device))
    tp.make_graphed_callables(module, (leaf(device),))


def test_a_graphed_module_inside_another_is_part_of_it(device, twins):
    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    tp.make_graphed_callables(inner, (leaf(device),))
    outer = nn.Sequential(inner, nn.Linear(4, 4)).to(device)
    eager = copy.deepcopy(outer)
    tp.make_graphed_callables(outer, (leaf(device),))
    for _ in range(2):
        x = leaf(device)
        state = torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else None
        expected = eager(x)
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1])
        result = outer(x)
        assert torch.equal(result, expected)
        found = torch.autograd.grad(result.square().sum(), [x, *outer.parameters()])
        wanted = torch.autograd.grad(expected.square().sum(), [x, *eager.parameters()])
        assert_all_equal(found, wanted)
    assert inner.forward.counts.replayed == 0
    inner(leaf(device))
    assert inner.forward.counts.replayed == 1


def test_a_graphed_module_in_a_capture_is_part_of_it(device):
    module = nn.Linear(4, 4).to(device)
    tp.make_graphed_callables(module, (rand(device, 6, 4),))
    x = rand(device, 6, 4)
    with torch.no_grad():
        module(x)
        g = tp.CUDAGraph(device=device)
        with tp.graph(g):
            y = module(x)
        x.copy_(rand(device, 6, 4))
        g.replay()
        assert torch.equal(y, nn.functional.linear(x, module.weight, module.bias))


def test_the_mode_of_a_compiled_module_is_that_of_the_one_it_wraps():
    inner = nn.Linear(2, 2)
    compiled = torch.compile(inner)
    assert candidate._with_mode(compiled) is vars(inner)
    assert candidate._with_mode(inner) is vars(inner)
    entry = entries.ModuleEntry("", compiled, mode=True, hooks=False, mentions=Mentions())
    assert not entry.changed
    compiled.eval()
    assert not entry.changed
    assert (
        entries.ModuleEntry("", inner, mode=True, hooks=False, mentions=Mentions()).changed is False
    )
