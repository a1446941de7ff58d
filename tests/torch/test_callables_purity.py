"""What the Python code of callables keeps: refused by name, put back, and no false alarms."""

from __future__ import annotations

import functools
import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

COUNT = 0
SEEN: list[int] = []
CACHE: dict[object, torch.Tensor] = {}


def rand(device, *shape, **options):
    return torch.rand(*shape, device=device, **options)


class Counter:
    total = 0


def counts_in_a_closure():
    n = 1

    def f(x):
        nonlocal n
        n += 1
        return x * n

    return f, lambda: n


def counts_in_a_global():
    def f(x):
        global COUNT
        COUNT += 1
        return x * COUNT

    return f, lambda: COUNT


def appends_to_a_global():
    def f(x):
        SEEN.append(len(SEEN))
        return x * 2

    return f, lambda: list(SEEN)


def appends_in_a_dict():
    history = {"losses": []}

    def f(x):
        history["losses"].append(x.mean())
        return x * 2

    return f, lambda: len(history["losses"])


def appends_to_a_default():
    def f(x, seen=[]):  # noqa: B006
        seen.append(1)
        return x * 2

    return f, lambda: list(f.__defaults__[0])


def sets_an_attribute_of_an_object():
    state = SimpleNamespace(last=None)

    def f(x):
        state.last = x * 2
        return state.last + 1

    return f, lambda: state.last


def counts_on_a_class():
    def f(x):
        Counter.total += 1
        return x * 2

    return f, lambda: Counter.total


def counts_in_a_helper():
    n = 0

    def helper(x):
        nonlocal n
        n += 1
        return x * 2

    def f(x):
        return helper(x) + 1

    return f, lambda: n


def counts_in_a_forward():
    class Layer(nn.Module):
        def forward(self, x):
            global COUNT
            COUNT += 1
            return self.inner(x)

        def inner(self, x):
            SEEN.append(1)
            return x * 2

    return Layer(), lambda: (COUNT, list(SEEN))


CHANGING = {
    "a variable of the closure": (counts_in_a_closure, r"sets n in each call"),
    "a global": (counts_in_a_global, r"sets global COUNT in each call"),
    "a list": (appends_to_a_global, r"sets global SEEN\[\d\] in each call"),
    "a list in a dict": (appends_in_a_dict, r"sets history\['losses'\]\[\d\] in each call"),
    "a default": (appends_to_a_default, r"sets a default\[0\]\[\d\] in each call"),
    "an object": (sets_an_attribute_of_an_object, r"sets state.last in each call"),
    "a class": (counts_on_a_class, r"sets Counter.total in each call"),
    "a helper's closure": (counts_in_a_helper, r"sets n in each call"),
    "globals of a forward": (counts_in_a_forward, r"sets global COUNT, global SEEN\[\d\] in each"),
}


@pytest.mark.parametrize(("make", "met"), CHANGING.values(), ids=CHANGING)
def test_what_code_keeps_in_python_is_refused_by_name_and_put_back(device, make, met):
    f, state = make()
    before = state()
    with pytest.raises(tp.OperationRefused, match=met):
        tp.make_graphed_callables(f, (rand(device, 4),))
    assert state() == before


@pytest.mark.parametrize(
    ("change", "met"),
    [
        (lambda batch, x: batch["parts"].append(x * 2), r"args\[0\]\['parts'\]\[1\]"),
        (lambda batch, x: batch.update(y=x * 2), r"args\[0\]\['y'\]"),
        (lambda batch, x: batch.update(x=x * 2), r"args\[0\]\['x'\]"),
        (lambda batch, x: batch["parts"].clear(), r"args\[0\]\['parts'\]\[0\]"),
    ],
)
def test_changing_a_container_among_the_arguments_is_refused_by_name(device, change, met):
    def f(batch):
        change(batch, batch["x"])
        return batch["x"] + 1

    x = rand(device, 4)
    batch = {"x": x, "parts": [x]}
    with pytest.raises(tp.OperationRefused, match=f"sets {met}"):
        tp.graphed(f)(batch)
    assert batch["x"] is x
    assert batch.keys() == {"x", "parts"}
    assert len(batch["parts"]) == 1


@functools.cache
def table(n, device):
    return torch.arange(n, device=device, dtype=torch.float32)


def test_caches_and_lazy_attributes_are_no_changes(device):
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.sizes = None, []

        @functools.cached_property
        def scale(self):
            return 3.0

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(4.0, device=x.device)
            if x.shape not in CACHE:
                CACHE[x.shape] = torch.ones(4, device=x.device)
            self.sizes = [*x.shape]
            logging.getLogger(__name__).debug("called")
            return x * self.table * self.scale + CACHE[x.shape] + table(4, x.device)

    CACHE.clear()
    table.cache_clear()
    module = Lazy()
    eager = Lazy()
    x = rand(device, 4)
    graphed = tp.make_graphed_callables(module, (x,))
    assert CACHE == {}
    for _ in range(40):
        assert torch.equal(graphed(x), eager(x))


def test_a_recursive_function_is_one_graph(device):
    @tp.graphed
    def power(x, n):
        return x if n == 0 else power(x, n - 1) * x

    x = rand(device, 4)
    for _ in range(20):
        assert torch.equal(power(x, 3), x * x * x * x)
    assert power.counts == (20, 0, 1)


def test_a_graphed_helper_may_be_captured_later_and_released(device):
    helper = tp.graphed(lambda x: x * 2)
    main = tp.graphed(lambda x: helper(x) + 1)
    x = rand(device, 4)
    main(x)
    helper(x)
    for _ in range(20):
        assert torch.equal(main(x), x * 2 + 1)
    helper.release()
    for _ in range(20):
        assert torch.equal(main(x), x * 2 + 1)


def test_methods_of_each_kind_are_graphed(device):
    class Kinds:
        factor = 3.0

        def __init__(self, weight):
            self.weight = weight

        @tp.graphed
        def method(self, x):
            return x * self.weight

        @tp.graphed
        @staticmethod
        def outer_static(x):
            return x * 2

        @staticmethod
        @tp.graphed
        def inner_static(x):
            return x * 2

        @classmethod
        @tp.graphed
        def of_class(cls, x):
            return x * cls.factor

    class Other(Kinds):
        factor = 5.0

    x = rand(device, 4)
    first, second = Kinds(rand(device, 4)), Kinds(rand(device, 4))
    for _ in range(20):
        for one in (first, second):
            assert torch.equal(one.method(x), x * one.weight)
            assert torch.equal(one.outer_static(x), x * 2)
            assert torch.equal(one.inner_static(x), x * 2)
            assert torch.equal(one.of_class(x), x * 3)
        assert torch.equal(Other.of_class(x), x * 5)
    assert Kinds.of_class.counts.captured == 1
    assert Kinds.outer_static.counts.captured == 1


def test_functions_without_a_module_name_are_graphed(device):
    space: dict[str, object] = {}
    exec("def f(x):\n    return x * 2", space)
    space["f"].__module__ = None
    x = rand(device, 4)
    assert torch.equal(tp.graphed(space["f"])(x), x * 2)
