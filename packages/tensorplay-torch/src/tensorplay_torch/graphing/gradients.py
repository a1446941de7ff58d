"""Gradient buffers that captured backwards add to: one for each parameter, shared by all graphs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from tensorplay_core.errors import GraphStateError
from tensorplay_torch.compiled import parts

__all__ = ["Accumulation", "buffer_of"]

# Callables that share a parameter add to one buffer, as eager uses of it add to one gradient.
_buffers: Any = WeakTensorKeyDictionary()
_grad = attrgetter("grad")
_HOOKS = (attrgetter("_backward_hooks"), attrgetter("_post_accumulate_grad_hooks"))


def buffer_of(parameter: torch.Tensor) -> torch.Tensor:
    """The buffer of ``parameter``, for as long as anybody holds it. Not inside a capture."""
    found = _buffers.get(parameter)
    buffer: torch.Tensor | None = found() if found is not None else None
    if buffer is None:
        with torch.inference_mode(False), torch.no_grad():
            buffer = torch.zeros_like(parameter, requires_grad=False)
        _buffers[parameter] = weakref.ref(buffer)
    return buffer


class Accumulation:
    """What one recorded backward adds to the gradients of parameters.

    Before a backward ``settle`` makes the buffers hold what ``.grad`` holds. A parameter without a
    gradient gets the buffer, set to -0.0: whatever is added to that comes out unchanged. A gradient
    that the user put there is copied into the buffer, and ``deliver`` copies the sum back.

    Args:
        parameters: Those that get a gradient.
        buffers: Of each.
        names: What errors call each.
        subject: What errors call the callable.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        names: Sequence[str],
        subject: str,
    ) -> None:
        self._parameters, self._buffers = list(parameters), list(buffers)
        self._names, self._subject = list(names), subject
        self._theirs: list[torch.Tensor] = []
        self._ours: list[torch.Tensor] = []
        compiled = parts()
        self._settled = None if compiled is None else compiled.settled

    def settle(self) -> None:
        """Makes the buffers hold what ``.grad`` holds.

        Raises:
            GraphStateError: A parameter has hooks, which no replay would run.
        """
        if self._settled is not None and self._settled(self._parameters, self._buffers):
            return
        for hooks in _HOOKS:
            if any(map(hooks, self._parameters)):
                raise self._hooked(hooks)
        grads = list(map(_grad, self._parameters))
        if not all(map(is_, grads, self._buffers)):
            self._bring_together(grads)

    def deliver(self) -> None:
        """Copies the sums to gradients that are not the buffers. Called after the backward."""
        if self._theirs:
            with torch.no_grad():
                torch._foreach_copy_(self._theirs, self._ours)
            self._theirs, self._ours = [], []

    def _bring_together(self, grads: list[torch.Tensor | None]) -> None:
        fresh: list[torch.Tensor] = []
        with torch.no_grad():
            for parameter, grad, buffer in zip(self._parameters, grads, self._buffers, strict=True):
                if grad is None:
                    fresh.append(buffer)
                    parameter.grad = buffer
                elif grad is not buffer:
                    self._theirs.append(grad)
                    self._ours.append(buffer)
            if fresh:
                torch._foreach_zero_(fresh)
                torch._foreach_neg_(fresh)
            if self._ours:
                torch._foreach_copy_(self._ours, self._theirs)

    def _hooked(self, hooks: Any) -> GraphStateError:
        name = next(
            name for name, one in zip(self._names, self._parameters, strict=True) if hooks(one)
        )
        return GraphStateError(
            doing="running the backward of",
            subject=self._subject,
            met=f"{name} has a hook, and with param_grads='in_graph' its gradient is added inside "
            "the graph, where no hook runs",
            remedy="Remove the hook, or graph with param_grads='autograd'.",
        )
