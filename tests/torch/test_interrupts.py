"""Ctrl-C at any moment of a capture on the CPU leaves nothing of it on, and the next one works."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _python_dispatch as dispatch
from torch.utils.checkpoint import checkpoint

import tensorplay_torch as tp
from tensorplay_core import reclaim, registry
from tensorplay_torch.tracking.state import watching

# One moment in so many is tried: there are thousands, and EVERY=1 tries them all.
EVERY = int(os.environ.get("EVERY", "41"))
OURS = ("tensorplay_torch", "tensorplay_core", "torch/utils/_python_dispatch")


def surroundings() -> tuple[object, ...]:
    return (
        dispatch._get_current_dispatch_mode_stack(),
        _get_current_function_mode_stack(),
        dispatch._is_in_torch_dispatch_mode,
        dispatch._is_in_non_infra_torch_dispatch_mode,
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_rng_state().tolist(),
        len(_global_optimizer_pre_hooks),
        len(watching),
        gc.isenabled(),
        reclaim.captures_live(),
        registry.capturing_here(),
    )


class Work:
    """Captures of several kinds, each over the same few tensors."""

    def __init__(self) -> None:
        self.x = torch.ones(3, 3)
        self.layer = torch.nn.Linear(3, 3)
        self.step = torch.optim.SGD(self.layer.parameters(), lr=0.0)
        self.grads = [torch.zeros_like(p) for p in self.layer.parameters()]
        for parameter, grad in zip(self.layer.parameters(), self.grads, strict=True):
            parameter.grad = grad

    def draws(self, made: tp.CUDAGraph) -> None:
        with tp.graph(made):
            torch.nn.functional.dropout(self.x * 2)
            torch.einsum("ij,jk->ik", self.x, self.x)

    def trains(self, made: tp.CUDAGraph) -> None:
        with tp.graph(made), torch.autocast("cpu", enabled=False):
            self.step.zero_grad(set_to_none=False)
            checkpoint(self.layer, self.x, use_reentrant=False).sum().backward()
            self.step.step()

    def branches(self, made: tp.CUDAGraph) -> None:
        with tp.graph(made, enable_annotations=True):
            out = tp.cond(self.x.sum() > 0, torch.sin, torch.cos, self.x)
            tp.while_loop(lambda t: t.sum() < 0, lambda t: t + 1, out, max_steps=2)

    def fails(self, made: tp.CUDAGraph) -> None:
        with pytest.raises(tp.OperationRefused), tp.graph(made), torch.no_grad():
            (self.x + 1).sum().item()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["draws", "trains", "branches", "fails"])
def test_an_interrupt_at_any_moment_leaves_nothing_on(name: str, interrupt_at: Any) -> None:
    work = Work()
    capture: Callable[[Any], None] = getattr(work, name)
    versions = [p._version for p in work.layer.parameters()]
    capture(tp.CUDAGraph(device="cpu"))  # What is imported or remembered at first use, is now.
    work.x * 1
    before = surroundings()
    for moment in count(1, EVERY):
        made, interrupt = tp.CUDAGraph(device="cpu"), interrupt_at(moment, *OURS)
        with suppress(KeyboardInterrupt), interrupt.armed():
            capture(made)
        made.close()
        assert surroundings() == before, interrupt.where
        assert [p._version for p in work.layer.parameters()] == versions, interrupt.where
        assert all(
            p.grad is grad for p, grad in zip(work.layer.parameters(), work.grads, strict=True)
        ), interrupt.where
        if not interrupt.where:
            break
        if moment % 64 < EVERY:
            with tp.graph(tp.CUDAGraph(device="cpu")) as again:
                out = work.x + 1
            again.replay()
            assert out.tolist() == [[2.0] * 3] * 3, interrupt.where
            again.close()
    assert moment > 500
