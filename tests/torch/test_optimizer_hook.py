"""The hook by which captures see optimizers step: one for good, in the way of nobody."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn, optim
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_pre_hook

from tensorplay_core import OperationRefused
from tensorplay_torch.tracking.state import Bindings, watching


class Stepping:
    def __init__(self) -> None:
        self.model, self.x = nn.Linear(3, 2), torch.randn(4, 3)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).square().sum().backward()
        self.optimizer.step()


@pytest.mark.parametrize("beside", [False, True], ids=["in a hook", "in another thread"])
def test_captures_leave_a_step_that_is_under_way_alone(record, beside):
    step = Stepping()
    captured = []

    def capture(*_):
        captured.append(record(lambda: step.x + 1))

    def capture_beside(*_):
        thread = threading.Thread(target=capture)
        thread.start()
        thread.join()

    handles = [
        register_optimizer_step_pre_hook(capture_beside if beside else capture),
        register_optimizer_step_pre_hook(lambda *_: None),
    ]
    try:
        step()
    finally:
        for one in handles:
            one.remove()
    assert len(captured) == 1
    assert step.optimizer.state


def test_captures_register_no_hooks(record):
    before, during = list(_global_optimizer_pre_hooks), []
    record(lambda: during.extend(_global_optimizer_pre_hooks) or torch.ones(2) + 1)
    assert before == during == list(_global_optimizer_pre_hooks)
    assert not watching


def test_a_hook_that_somebody_cleared_is_there_again(record):
    kept = dict(_global_optimizer_pre_hooks)
    _global_optimizer_pre_hooks.clear()
    try:
        with pytest.raises(OperationRefused, match="momentum_buffer"):
            record(Stepping())
    finally:
        _global_optimizer_pre_hooks.update(kept)


def test_watching_ends_in_whichever_thread_and_as_often_as_asked():
    bindings, step = Bindings(lambda tensor: True), Stepping()
    bindings.stop()
    bindings.start()
    thread = threading.Thread(target=bindings.stop)
    thread.start()
    thread.join()
    bindings.stop()
    step()
    bindings.check()
    assert bindings not in watching


def test_a_step_that_was_compiled_outside_is_looked_at():
    step = Stepping()
    step.model(step.x).sum().backward()
    compiled = torch.compile(step.optimizer.step, backend="eager")
    compiled()
    step.optimizer.state.clear()
    bindings = Bindings(lambda tensor: True)
    bindings.start()
    try:
        compiled()
    finally:
        bindings.stop()
    with pytest.raises(OperationRefused, match="momentum_buffer"):
        bindings.check()
