"""Ctrl-C at any moment of a capture on the CPU leaves nothing of it on, and the next one works."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _python_dispatch as dispatch
from torch.utils.checkpoint import checkpoint

import tensorplay_torch as tp
from tensorplay_core import reclaim, registry


class Interrupt:
    """A profiler that raises KeyboardInterrupt at the n-th moment an interrupt can arrive.

    CPython looks for signals when a function begins and after a call into C; what runs inside
    finalisers is left alone, since Python drops what they raise.
    """

    def __init__(self, moment: int) -> None:
        self.left, self.where = moment, ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return"):
            return
        if not any(part in frame.f_code.co_filename for part in OURS):
            return
        self.left -= 1
        if self.left <= 0 and not in_finaliser(frame):
            self.where = f"{event} in {frame.f_code.co_qualname}, line {frame.f_lineno}"
            raise KeyboardInterrupt(self.where)

    @contextmanager
    def armed(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


# One moment in so many is tried: there are thousands, and EVERY=1 tries them all.
EVERY = int(os.environ.get("EVERY", "41"))
OURS = ("tensorplay_torch", "tensorplay_core", "torch/utils/_python_dispatch")


def in_finaliser(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "_note", "_thread_ended"):
            return True
        frame = frame.f_back
    return False


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
def test_an_interrupt_at_any_moment_leaves_nothing_on(name: str) -> None:
    work = Work()
    capture: Callable[[Any], None] = getattr(work, name)
    versions = [p._version for p in work.layer.parameters()]
    capture(tp.CUDAGraph(device="cpu"))  # What is imported or remembered at first use, is now.
    work.x * 1
    before = surroundings()
    for moment in count(1, EVERY):
        made, interrupt = tp.CUDAGraph(device="cpu"), Interrupt(moment)
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
