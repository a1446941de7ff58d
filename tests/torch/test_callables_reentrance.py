"""Calls from within calls, and releases beside calls: an error with a name, never a deadlock."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tensorplay_torch.graphing.lanes import lane_of


def rand(device, *shape, **options):
    return torch.rand(*shape, device=device, **options)


CALLS: list[object] = []


@torch.library.custom_op("tensorplay_tests::calls_back", mutates_args=())
def calls_back(x: torch.Tensor) -> torch.Tensor:
    for call in CALLS:
        call()
    return x.clone()


@calls_back.register_fake
def _(x):
    return torch.empty_like(x)


def within(function, *args):
    """Calls ``function`` in a thread apart, so that a deadlock fails and does not hang."""
    found = []

    def run():
        try:
            found.append(function(*args))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it hangs"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def noting(errors, function):
    """Calls ``function`` and keeps what it raises."""

    def run():
        try:
            function()
        except BaseException as error:
            errors.append(error)

    return run


def test_a_call_from_the_midst_of_a_call_is_refused():
    """As finalisers and signal handlers do; here at a place that is known."""
    f = tp.graphed(lambda x: calls_back(x) * 2)
    x = torch.rand(4)
    f(x)
    CALLS.append(lambda: f(x))
    try:
        with pytest.raises(tp.GraphStateError, match="in the midst of a call of it"):
            within(f, x)
    finally:
        CALLS.clear()
    assert torch.equal(within(f, x), x * 2)


@pytest.mark.parametrize("grad", [True, False])
def test_no_call_waits_for_its_own_thread(device, grad):
    x = rand(device, 2, 4)
    module = tp.make_graphed_callables(nn.Linear(4, 4, device=device), (x,))

    def enter():
        pool = module.forward._group._pools[0 if grad else "bare"].id
        with lane_of(pool, torch.device(device)).lock, torch.set_grad_enabled(grad):
            module(x)

    with torch.set_grad_enabled(grad):
        module(x)
    with pytest.raises(tp.GraphStateError, match="in the midst of a call of it"):
        within(enter)
    assert torch.equal(module(x), module.forward.original(x))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", ["module", "function"])
def test_a_release_beside_calls_raises_by_name(device, grad, kind):
    x = rand(device, 4, 4)
    for _ in range(15):
        layer = nn.Linear(4, 4, device=device)
        expected = layer(x)
        graphed = (
            tp.make_graphed_callables(layer, (x,))
            if kind == "module"
            else tp.make_graphed_callables(lambda x, layer=layer: layer(x), (x,))
        )
        errors, started = [], threading.Barrier(3)

        def run(graphed=graphed, started=started, expected=expected):
            started.wait()
            with torch.set_grad_enabled(grad):
                for _ in range(2000):
                    assert torch.equal(graphed(x), expected)

        threads = [threading.Thread(target=noting(errors, run)) for _ in range(2)]
        for thread in threads:
            thread.start()
        started.wait()
        tp.release(graphed)
        for thread in threads:
            thread.join()
        assert {type(error) for error in errors} <= {tp.GraphStateError}


def test_threads_that_meet_a_capture_anew_are_served(device):
    x = rand(device, 4, 4)
    layer = nn.Linear(4, 4, device=device)
    graphed = tp.make_graphed_callables(layer, (x,), on_change="recapture")
    errors, done = [], threading.Event()

    def run():
        with torch.no_grad():
            while not done.is_set():
                graphed(x)

    threads = [threading.Thread(target=noting(errors, run)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        with torch.no_grad():
            layer.weight.data = layer.weight.data.clone()
            graphed(x)
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_branch_on_the_grad_mode_has_a_graph_each(device):
    @tp.graphed
    def f(x):
        return x * 2 if torch.is_grad_enabled() else x * 3

    x = rand(device, 4)
    for _ in range(3):
        assert torch.equal(f(x), x * 2)
        with torch.no_grad():
            assert torch.equal(f(x), x * 3)
    assert f.counts.captured == 2
