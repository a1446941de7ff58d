"""What ran in a capture is noted, and what its code reads is watched by graphed callables too."""

from __future__ import annotations

import cProfile
import gc
import sys
import threading
import types
import weakref

import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tensorplay_torch.tracking.instructions import only_filled
from tensorplay_torch.tracking.ran import Runs
from tensorplay_torch.tracking.reached import Reached

NUMBERS = {"factor": 1.0}


def plus(x):
    return x + 1


class Owner:
    def __init__(self):
        self.rate = 2.0

    def method(self, x, *rest, **named):
        del rest, named
        return plus(x) * self.rate


def names(runs):
    return [(one.code.co_name, [name for name, _ in one.given]) for one in runs.calls]


def test_what_runs_is_noted_once_with_objects_that_it_was_given():
    runs, owner = Runs(), Owner()
    with runs.noting():
        for x in range(3):
            owner.method(x, [owner], other={"deep": owner})
        torch.nn.functional.relu(torch.ones(2))
    assert names(runs) == [
        ("method", ["self", "rest[0][0]", "named['other']['deep']"]),
        ("plus", []),
    ]
    runs.clear()
    assert runs.calls == []


def test_nothing_is_noted_after_an_exception_nor_by_other_threads():
    runs, stop, going = Runs(), threading.Event(), threading.Event()

    def elsewhere():
        while not stop.is_set():
            plus(1)
            going.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        assert going.wait(10)
        with pytest.raises(KeyError), runs.noting():
            NUMBERS["none"]
    finally:
        stop.set()
        thread.join()
    plus(1)
    assert names(runs) == []


def test_a_profiler_that_is_there_goes_on():
    seen = []

    def profiler(frame, event, argument):
        del argument
        if event == "call":
            seen.append(frame.f_code.co_name)

    runs = Runs()
    sys.setprofile(profiler)
    try:
        with runs.noting():
            plus(1)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert "plus" in seen
    assert names(runs) == [("plus", [])]


def test_under_a_profiler_in_c_captures_work():
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        graphed = tp.graphed(lambda x: plus(x))
        assert torch.equal(graphed(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        profiler.disable()
    assert any("plus" in str(one.code) for one in profiler.getstats())


def test_what_a_capture_made_is_not_kept():
    class Output:
        pass

    made = []

    def function(x):
        output = Output()
        output.value = x * 2
        made.append(weakref.ref(output))
        return finish(output)

    def finish(output):
        return output.value + 1

    runs = Runs()
    with runs.noting():
        function(torch.ones(2))
    reached = Reached(function, runs.calls)
    gc.collect()
    assert made[0]() is None
    assert not any(one.name == "output.value" for one in reached.bindings)


def fills(x, kept, notes):
    kept["mean"] = x.mean()
    notes.append(x)
    return x


def reads(x, kept, notes):
    kept["mean"] = x + kept["before"]
    notes.append(len(notes))
    return x


def drops(x, kept, notes):
    kept.setdefault("all", []).append(x.mean())
    notes.pop()
    kept["count"] += 1
    notes[0].append(x if x.dim() else None)
    return x


def tells(x, kept, notes):
    return x * kept.setdefault("scale", 1.0) + notes.pop()


def joins(x, kept, notes):
    (kept | notes).update(x=x)
    (notes + kept).append(x)
    return x


def test_containers_that_are_only_filled_are_told():
    for filling in (fills, drops):
        assert {"kept", "notes"} <= only_filled(filling.__code__)
    for reading in (reads, tells, joins):
        assert not {"kept", "notes"} & only_filled(reading.__code__)


class Net(nn.Module):
    scales = [1.0]  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.linear, self.temperature = nn.Linear(4, 4), 1.0
        self.hidden = (nn.Linear(4, 4).requires_grad_(False),)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        for layer in self.layers:
            layer.skipped = False

    def forward(self, x):
        for layer in self.layers:
            x = x if layer.skipped else layer(x)
        return self.post(x + self.hidden[0](x)) * self.scales[0]

    def post(self, x):
        return x * 1.0

    def features(self, x):
        return self.linear(x) / self.temperature


def skipped(net, patch):
    patch.setattr(net.layers[1], "skipped", True)


def hotter(net, patch):
    patch.setattr(net, "temperature", 2.0)


def moved(net, patch):
    del patch
    net.hidden[0].weight.data = torch.ones_like(net.hidden[0].weight)


def posted(net, patch):
    patch.setattr(type(net), "post", lambda self, x: x * 2.0)


def rescaled(net, patch):
    patch.setattr(type(net), "scales", [2.0])


CHANGES = {
    "a parent reads": (lambda net: net, skipped),
    "another method": (lambda net: net.features, hotter),
    "a function": (lambda net: lambda x: net(x) / net.temperature, hotter),
    "a hidden module": (lambda net: net, moved),
    "a method of a class": (lambda net: net, posted),
    "a list of a class": (lambda net: net, rescaled),
}


@pytest.mark.parametrize("grad", [True, False], ids=["training", "bare"])
@pytest.mark.parametrize("name", CHANGES)
def test_graphed_calls_notice_what_their_code_reads(device, name, grad, monkeypatch):
    of, change = CHANGES[name]
    torch.manual_seed(0)
    net, x = Net().to(device), torch.ones(2, 4, device=device)
    net.hidden[0].to(device)
    with torch.set_grad_enabled(grad):
        called = tp.graphed(of(net))
        for _ in range(3):
            called(x)
        change(net, monkeypatch)
        with pytest.raises(tp.StaleGraph):
            for _ in range(600):
                called(x)


def test_a_function_of_a_module_that_is_exchanged_is_noticed(monkeypatch):
    losses = types.ModuleType("losses")
    losses.focal = plus
    called = tp.graphed(lambda x: losses.focal(x))
    called(torch.ones(2))
    monkeypatch.setattr(losses, "focal", torch.sin)
    with pytest.raises(tp.StaleGraph, match="focal"):
        for _ in range(200):
            called(torch.ones(2))


def test_captures_in_several_threads_do_not_refuse_each_other():
    """One undoes its warm-up, random state included, while another captures."""
    failed = []

    def work(kind):
        try:
            for _ in range(12):
                net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
                if kind == "modules":
                    tp.make_graphed_callables(net, (torch.ones(2, 4),))
                else:
                    tp.graphed(net)(torch.ones(2, 4))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(kind,)) for kind in ("modules", "calls") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
