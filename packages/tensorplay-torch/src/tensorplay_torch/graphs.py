"""The graph API of core, bound to the torch driver."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

import tensorplay_core as core
from tensorplay_core.control_flow import cond_by
from tensorplay_core.errors import ArgumentTypeError
from tensorplay_core.signature import a_type

from .resources.generators import of_torch

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

    def register_generator_state(self, generator: object) -> None:
        """Lets the graph follow a random generator beside the device's default one.

        Args:
            generator: A ``torch.Generator`` of the device that the graph captures on.

        Raises:
            ArgumentTypeError: It is something else. One of another device is refused by the
                capture.
            GraphStateError: The graph is captured already, or closed.
        """
        of_torch(generator)
        super().register_generator_state(generator)


def graph_pool_handle(device: object = None) -> Hashable:
    """An id of a fresh memory pool; see ``tensorplay_core.graph_pool_handle``.

    Args:
        device: None, an ordinal, a name or a ``torch.device``; None is the current CUDA device, or
            the CPU where there is none.

    Raises:
        ArgumentError: No such device.
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
    bodies, of which each replay runs one; see ``tensorplay_core.cond``. What comes back has memory
    of its own either way, each result its own: copies of what the function returns, which outside
    a capture autograd follows.

    Args:
        pred: One Bool on the capturing device.
        true_fn: Returns a tensor, None, or a tuple or list of them.
        false_fn: Returns the same structure with the same shapes.
        operands: Passed to both.

    Returns:
        What the function run returned; inside a capture, tensors of the graph that hold it.

    Raises:
        PredicateError: ``pred`` is not one Bool on the device.
        ArgumentTypeError: A function returns something that is no tensor.
        SignatureMismatch: The branches return different structures or shapes.
        OperationRefused: A result requires grad: gradients cannot follow it out of a body.
    """
    runtime = core.select(DRIVER)
    return cond_by(runtime, _cloned, pred, _checked(true_fn), _checked(false_fn), operands)


def while_loop(
    test: Callable[..., Any],
    body: Callable[..., Any],
    carry: Any,
    *,
    max_steps: int | None = None,
) -> Any:
    """``while test(*carry): carry = body(*carry)``, recordable; returns the last carry.

    The carried tensors are copied first, so that the caller's stay as they are. ``test`` runs once
    more than ``body`` does, also where ``max_steps`` ends the loop.

    Args:
        test: Takes the carried tensors, returns one Bool on the device.
        body: Takes the carried tensors, returns as many of the same shapes, in any order.
        carry: A tensor, or a tuple or list of tensors.
        max_steps: End after so many runs of the body; None is no bound.

    Returns:
        The carry after the loop, structured as ``carry``.

    Raises:
        PredicateError: ``test`` does not return one Bool on the device.
        ArgumentTypeError: What is carried is no tensor.
        SignatureMismatch: ``body`` returns another structure or other shapes.
        ArgumentError: ``max_steps`` is not a positive integer.
        OperationRefused: A carried tensor requires grad.
    """
    for place, one in enumerate(_leaves(carry)):
        _tensor(one, f"carry[{place}]", "carrying")
    return core.while_loop(test, body, carry, max_steps=max_steps, driver=DRIVER)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose results are tensors or None."""

    def branch(*args: Any) -> Any:
        result = function(*args)
        for place, one in enumerate(_leaves(result)):
            if one is not None:
                _tensor(one, f"result[{place}]", "returning from a branch of cond()")
        return result

    return branch


def _cloned(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone()


def _leaves(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else [value]


def _tensor(value: Any, name: str, doing: str) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    raise ArgumentTypeError(
        doing=doing,
        subject=name,
        met=f"it is {a_type(value)}",
        remedy="Pass tensors, or a tuple or list of them; a number as torch.tensor(number).",
    )
