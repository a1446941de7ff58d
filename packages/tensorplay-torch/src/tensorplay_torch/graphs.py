"""The graph API of core, bound to the torch driver."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import tensorplay_core as core

__all__ = [
    "CUDAGraph",
    "cond",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "while_loop",
]

DRIVER = "torch"


class CUDAGraph(core.CUDAGraph):
    """torch work, recorded once and replayed for the price of a launch.

    It captures on CUDA devices and, with ``device="cpu"`` or where there is no GPU, on the CPU.
    Everything else is as in ``tensorplay_core.CUDAGraph``; ``pool=`` also takes a
    ``torch.cuda.MemPool``, an id of ``torch.cuda.graph_pool_handle()``, and a captured
    ``torch.cuda.CUDAGraph``.
    """

    driver = DRIVER


def graph_pool_handle(device: object = None) -> Hashable:
    """An id of a fresh memory pool; see ``tensorplay_core.graph_pool_handle``.

    Args:
        device: None, an ordinal, a name or a ``torch.device``; None is the current CUDA device, or
            the CPU where there is none.
    """
    return core.graph_pool_handle(device, driver=DRIVER)


def is_current_stream_capturing() -> bool:
    """True if this thread's current stream is capturing, whichever library began the capture."""
    return core.is_current_stream_capturing(driver=DRIVER)


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any
) -> Any:
    """``true_fn(*operands) if pred else false_fn(*operands)``, recordable.

    Outside a capture it reads the predicate and calls one function. Inside, it captures both
    bodies, of which each replay runs one; see ``tensorplay_core.cond``.

    Args:
        pred: One Bool on the capturing device.
        true_fn: Returns a tensor, None, or a tuple or list of them.
        false_fn: Returns the same structure with the same shapes.
        operands: Passed to both.

    Returns:
        What the function run returned; inside a capture, tensors of the graph that hold it.

    Raises:
        PredicateError: ``pred`` is not one Bool on the device.
        SignatureMismatch: The branches return different structures or shapes.
        OperationRefused: A result requires grad: gradients cannot follow it out of a body.
    """
    return core.cond(pred, true_fn, false_fn, *operands, driver=DRIVER)


def while_loop(
    test: Callable[..., Any],
    body: Callable[..., Any],
    carry: Any,
    *,
    max_steps: int | None = None,
) -> Any:
    """``while test(*carry): carry = body(*carry)``, recordable; returns the last carry.

    The carried tensors are copied first, so that the caller's stay as they are; see
    ``tensorplay_core.while_loop``.

    Args:
        test: Takes the carried tensors, returns one Bool on the device.
        body: Takes the carried tensors, returns as many of the same shapes, in any order.
        carry: A tensor, or a tuple or list of tensors.
        max_steps: End after so many runs of the body; None is no bound.

    Returns:
        The carry after the loop, structured as ``carry``.

    Raises:
        PredicateError: ``test`` does not return one Bool on the device.
        SignatureMismatch: ``body`` returns another structure or other shapes.
        ArgumentError: ``max_steps`` is not a positive integer.
        OperationRefused: A carried tensor requires grad.
    """
    return core.while_loop(test, body, carry, max_steps=max_steps, driver=DRIVER)
