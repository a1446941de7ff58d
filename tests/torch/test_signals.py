"""Code that runs in the midst of a call, as a signal handler does, and calls the same."""

from __future__ import annotations

import signal
import threading

import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tensorplay_adapt import CudaGraphAdaptationStep

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no interval timers"
)
CALLS = 3000
DEEPEST = 3


@pytest.fixture
def meanwhile():
    """Has something called every half millisecond, in the midst of whatever runs."""
    assert threading.current_thread() is threading.main_thread()
    tried = {"served": 0, "refused": 0}
    depth = 0
    before = signal.getsignal(signal.SIGALRM)

    def begin(act):
        def handle(*_):
            nonlocal depth
            # What takes longer than the interval is called in the midst of itself, without end.
            if depth == DEEPEST:
                return
            depth += 1
            try:
                act()
            except tp.TensorplayError:
                tried["refused"] += 1
            else:
                tried["served"] += 1
            finally:
                depth -= 1

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        return tried

    yield begin
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_plan_called_in_the_midst_of_its_own_call_spoils_nothing(device, meanwhile):
    x = torch.ones(4, device=device)
    with tp.graph(tp.CUDAGraph(device=device)) as g:
        y = x * 2
    plan = g.stage([x], results=[y])
    other = torch.full((4,), -1.0, device=device)
    meanwhile(lambda: plan([other]))
    given = [torch.full((4,), float(n), device=device) for n in range(CALLS)]
    wrong = [n for n in range(CALLS) if not torch.equal(plan([given[n]])[0], 2 * given[n])]
    assert wrong == []


def test_a_replay_in_the_midst_of_a_staged_call_is_refused(device, meanwhile):
    x = torch.ones(4, device=device)
    with tp.graph(tp.CUDAGraph(device=device)) as g:
        y = x * 2
    plan = g.stage([x], results=[y])
    tried = meanwhile(g.replay)
    one = torch.full((4,), 3.0, device=device)
    for _ in range(CALLS):
        (result,) = plan([one])
        assert result.tolist() == [6.0] * 4
    if device == "cpu":
        assert tried["refused"]


def test_a_step_taken_in_the_midst_of_its_own_call_spoils_nothing(device, meanwhile):
    module = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-30)
    x = torch.randn(3, 4, device=device)

    def loss_function(prediction, targets):
        return (prediction * 0 + targets).mean()

    step = CudaGraphAdaptationStep.capture(
        module, optimizer, x, torch.ones(3, 1, device=device), loss_function
    )
    other = torch.full((3, 1), -1.0, device=device)
    meanwhile(lambda: step(x, other))
    for n in range(CALLS // 3):
        targets = torch.full((3, 1), float(n), device=device)
        assert step(x, targets).item() == n
