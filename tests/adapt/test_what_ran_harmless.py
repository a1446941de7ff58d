"""What is no dependency of a step, and objects that are not to be asked for anything."""

from __future__ import annotations

import gc
import weakref
from collections import Counter, defaultdict
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_core.errors import StaleGraph

mse = nn.functional.mse_loss


class Capture:
    def __init__(self, module, loss=mse):
        self.module, self.batch = module, (torch.randn(3, 8), torch.randn(3, 4))
        trained = [one for one in module.parameters() if one.requires_grad]
        self.step = CudaGraphAdaptationStep.capture(
            module, optim.SGD(trained, lr=0.01), *self.batch, loss
        )

    def __call__(self):
        return self.step(*self.batch)

    def evaluate(self):
        with torch.no_grad():
            self.module(self.batch[0])


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


class Stats:
    def __init__(self):
        self.mean, self.last, self.count = {}, None, 0

    def hook(self, module, given, result):
        self.mean["a"] = result.detach().mean()
        self.last = result.detach()
        self.count += 1


def by_setdefault(kept):
    return lambda module, given, result: kept.setdefault("a", []).append(result.detach())


def by_default(kept):
    return lambda module, given, result: kept["a"].append(result.detach())


def by_item(kept):
    return lambda module, given, result: kept.__setitem__("a", result.detach())


def by_count(kept):
    def hook(module, given, result):
        kept["a"] += 1

    return hook


def by_variable(kept):
    last, count = None, 0

    def hook(module, given, result):
        nonlocal last, count
        last = result.detach()
        count += 1

    return hook


COLLECTING = {
    "setdefault": (by_setdefault, dict),
    "defaultdict": (by_default, lambda: defaultdict(list)),
    "setitem": (by_item, dict),
    "Counter": (by_count, Counter),
    "a variable": (by_variable, dict),
    "an object": (lambda kept: kept.hook, Stats),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COLLECTING)
def test_hooks_that_only_collect_leave_steps_as_they_are(name):
    make, container = COLLECTING[name]
    module, kept = layers(), container()
    # Something returned by a hook would take the result's place.
    hook = make(kept)
    module[0].register_forward_hook(lambda *given: hook(*given) and None)
    step = Capture(module)
    for _ in range(10):
        step()
        step.evaluate()
        if hasattr(kept, "clear"):
            kept.clear()
    assert step.step.stale == ()


class Listing(nn.Module):
    """Lists another's parts, and not itself."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def named_modules(self, *args, **kwargs):
        return self.module.named_modules(*args, **kwargs)

    def forward(self, x):
        return self.module(x)


def test_a_module_that_lists_the_parts_of_another_is_captured():
    teacher = Listing(nn.Linear(8, 4).requires_grad_(False))
    step = Capture(layers(), lambda o, y: mse(o, y) + teacher.module.bias.sum())
    step()
    step = Capture(layers(), lambda o, y: mse(o, y) + teacher(torch.ones(1, 8)).sum())
    step()


class Claiming(Listing):
    """Has a part that its modules() tell of and its named_modules() do not."""

    def named_modules(self, *args, **kwargs):
        return iter([("", self)])

    def modules(self):
        return iter([self, self.module])


def test_a_part_that_is_not_listed_is_found_by_itself():
    teacher = Claiming(nn.Linear(8, 4).requires_grad_(False))
    inner = teacher.module
    step = Capture(layers(), lambda o, y: mse(o + inner.bias, y) + teacher(torch.ones(1, 8)).sum())
    step()


class Untouchable:
    """Everything that a look at it would call raises, but for what type() tells."""

    @property
    def __class__(self):
        raise RuntimeError("asked for its class")

    def __getattr__(self, name):
        raise KeyError(name)


class Mapped(dict):
    __getattr__ = dict.__getitem__


class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent, self.linear = weakref.proxy(parent), nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x) * self.parent.scale


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.child = Child(self)

    def forward(self, x):
        return self.child(x)


def nested():
    found = [1.0]
    for _ in range(2000):
        found = [found]
    return SimpleNamespace(found=found)


@pytest.mark.parametrize(
    "make",
    [Untouchable, nested, lambda: Mapped(scale=1.0), mock.MagicMock, lambda: [[]] * 3],
    ids=["untouchable", "nested", "mapped", "mock", "lists"],
)
def test_objects_are_not_asked_for_what_they_are(make):
    one, module = make(), layers()

    def use(result, given):
        return result if given is one else result * 2

    module[0].register_forward_hook(lambda module, given, result: use(result, one))
    step = Capture(module)
    for _ in range(3):
        step()


def test_a_child_may_hold_its_parent_by_a_proxy():
    step = Capture(Parent())
    step()


def test_containers_that_a_capture_made_go_with_it():
    seen = []

    class Collecting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x):
            acts = []

            def run(x):
                acts.append(self.linear(x))
                seen.append(weakref.ref(acts[0]))
                return acts[0] if len(acts) else x

            return run(x)

    step = Capture(Collecting())
    step()
    gc.collect()
    assert [one() for one in seen] == [None] * len(seen)


CONFIG = SimpleNamespace(scale=1.0)


def config():
    return CONFIG


class Various(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    @staticmethod
    def half(x):
        return x * 0.5

    @property
    def doubled(self):
        return 2.0

    def forward(self, x, by=(1.0,)):
        return self.half(self.linear(x)) * self.doubled * config().scale * by[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(CONFIG, "scale", 2.0),
        lambda patch: patch.setattr(Various, "half", staticmethod(lambda x: x)),
        lambda patch: patch.setattr(Various, "doubled", property(lambda self: 3.0)),
        lambda patch: patch.setattr(Various.forward, "__defaults__", ((2.0,),)),
    ],
    ids=["what a function returns", "a static method", "a property", "a default"],
)
def test_what_code_reads_in_roundabout_ways_is_noticed(change, monkeypatch):
    step = Capture(Various())
    for _ in range(3):
        step()
    change(monkeypatch)
    with pytest.raises(StaleGraph):
        for _ in range(30):
            step()
