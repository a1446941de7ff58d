"""``cond()`` and ``while_loop()``: host control flow outside a capture, nodes inside one.

The same code serves warm-up, verification and capture, and gives the same values each way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from . import registry
from .conditional import ConditionalMethods, _positive
from .errors import SignatureMismatch
from .protocols import Capture
from .runtime import Runtime, select

__all__ = ["cond", "cond_by", "while_loop"]


class _Foreign(ConditionalMethods):
    """A capture that another library began and will end; conditionals go into it all the same."""

    def __init__(self, runtime: Runtime, capture: Capture) -> None:
        self._runtime, self._capture = runtime, capture
        self._bodies: list[Any] = []
        self._poisoned = self._timeline = None


def cond(
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    *operands: Any,
    driver: str | None = None,
) -> Any:
    """``true_fn(*operands) if pred else false_fn(*operands)``, recordable.

    Outside a capture it reads the predicate and calls one function. Inside, it captures both
    bodies, of which each replay runs one. A branch may write the predicate. What comes back has
    memory of its own either way, each result its own: copies of what the function returns.

    Args:
        pred: One Bool on the device.
        true_fn: Returns an array, None, or a tuple or list of them.
        false_fn: Returns the same structure with the same shapes.
        operands: Passed to both.
        driver: Name of the driver; None chooses as ``select`` does.

    Returns:
        What the function run returned; inside a capture, arrays of the graph that hold it.

    Raises:
        PredicateError: ``pred`` is not one Bool on the device.
        SignatureMismatch: The branches return different structures or shapes.
        OperationRefused: A result cannot be copied: torch's driver has none for autograd to follow,
            for which there is ``tensorplay_torch.cond``.
        UnsupportedByDriver: The driver has no conditionals.
    """
    runtime = select(driver)
    return cond_by(runtime, partial(_copy, runtime), pred, true_fn, false_fn, operands)


def cond_by(
    runtime: Runtime,
    copy: Callable[[Any], Any],
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any],
) -> Any:
    """``cond()`` for layers that know more of their arrays than drivers do.

    Args:
        runtime: Of the driver.
        copy: Copies an array outside a capture, where autograd may follow; None stays None.
        pred: As ``cond`` takes it, and the rest too.
        true_fn: See there.
        false_fn: See there.
        operands: See there.
    """
    graph = _capturing(runtime)
    if graph is None:
        result = (true_fn if runtime.conditional_read(pred) else false_fn)(*operands)
        # All of them: nobody can tell what a function made and what it only had at hand.
        return _rebuild(result, [*map(copy, _leaves(result))])
    with graph.if_else(pred) as (then, other):
        with then:
            first = true_fn(*operands)
            # Not the branch's own arrays: it may return an operand, which the other must not write.
            results = [_copy(runtime, array) for array in _leaves(first)]
        with other:
            second = false_fn(*operands)
            _same_structure(first, second, "true_fn", "false_fn")
            for result, array in zip(results, _leaves(second), strict=True):
                _store(runtime, result, array)
    return _rebuild(first, results)


def while_loop(
    test: Callable[..., Any],
    body: Callable[..., Any],
    carry: Any,
    *,
    max_steps: int | None = None,
    driver: str | None = None,
) -> Any:
    """``while test(*carry): carry = body(*carry)``, recordable; returns the last carry.

    The carried arrays are copied first, so that the caller's stay as they are. ``test`` runs once
    more than ``body`` does, also where ``max_steps`` ends the loop.

    Args:
        test: Takes the carried arrays, returns one Bool on the device.
        body: Takes the carried arrays, returns as many of the same shapes, in any order.
        carry: An array, or a tuple or list of arrays.
        max_steps: End after so many runs of the body; None is no bound.
        driver: Name of the driver; None chooses as ``select`` does.

    Returns:
        The carry after the loop, structured as ``carry``.

    Raises:
        PredicateError: ``test`` does not return one Bool on the device.
        SignatureMismatch: ``body`` returns another structure or other shapes.
        ArgumentError: ``max_steps`` is not a positive integer.
        UnsupportedByDriver: The driver has no conditionals.
    """
    runtime = select(driver)
    if max_steps is not None:
        _positive("max_steps", max_steps)
    state = [_copy(runtime, array) for array in _leaves(carry)]
    graph = _capturing(runtime)
    if graph is None:
        steps, goes_on = 0, runtime.conditional_read(test(*state))
        while goes_on and steps != max_steps:
            # Stored, not rebound: arrays returned twice, or others' arrays, must not be carried on.
            _assign(runtime, state, _step(body, state, carry))
            steps += 1
            # After the last step too: in a capture it is part of the body, and it may write.
            goes_on = runtime.conditional_read(test(*state))
        return _rebuild(carry, state)
    with graph.while_loop(test(*state), max_steps=max_steps) as loop:
        _assign(runtime, state, _step(body, state, carry))
        loop.condition(test(*state))
    return _rebuild(carry, state)


def _capturing(runtime: Runtime) -> ConditionalMethods | None:
    for graph in reversed(registry.capturing_here()):
        if isinstance(graph, ConditionalMethods) and graph._runtime is runtime:
            return graph
    device = runtime.resolve_device(None)
    if runtime.can("graph_capturing") and runtime.graph_capturing(device):
        stream = runtime.current_stream(device)
        return _Foreign(runtime, runtime.graph_adopt(stream, "another library"))
    return None


def _step(body: Callable[..., Any], state: Sequence[Any], carry: Any) -> list[Any]:
    result = body(*state)
    _same_structure(carry, result, "carry", "body(*carry)")
    return _leaves(result)


def _assign(runtime: Runtime, state: Sequence[Any], values: Sequence[Any]) -> None:
    """``state[:] = values`` at once: a value may be (part of) another carried array."""
    safe = [
        _copy(runtime, value)
        if value is not state[place]
        and any(runtime.array_overlap(value, target) for target in state[: place + 1])
        else value
        for place, value in enumerate(values)
    ]
    for target, value in zip(state, safe, strict=True):
        if value is not target:
            _store(runtime, target, value)


def _copy(runtime: Runtime, array: Any) -> Any:
    if array is None:
        return None
    result = runtime.array_like(array)
    runtime.array_copy(result, array)
    return result


def _store(runtime: Runtime, destination: Any, source: Any) -> None:
    if destination is not None:
        runtime.array_copy(destination, source)


def _leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _rebuild(like: Any, leaves: Sequence[Any]) -> Any:
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*leaves)
    if isinstance(like, tuple | list):
        return type(like)(leaves)
    return leaves[0]


def _same_structure(first: Any, second: Any, first_name: str, second_name: str) -> None:
    differences = []
    if isinstance(first, tuple | list) != isinstance(second, tuple | list):
        differences.append(
            f"{second_name}: {first_name} gives {type(first).__name__}, got {type(second).__name__}"
        )
    elif len(_leaves(first)) != len(_leaves(second)):
        differences.append(
            f"len({second_name}): {first_name} gives {len(_leaves(first))}, "
            f"got {len(_leaves(second))}"
        )
    else:
        for place, (one, two) in enumerate(zip(_leaves(first), _leaves(second), strict=True)):
            here, there = (_shape(cast("Any", array)) for array in (one, two))
            if here != there:
                differences.append(
                    f"{second_name}[{place}].shape: {first_name} gives {here}, got {there}"
                )
            # Eager code would go on in the other type, and a capture cast to the first.
            was, got = (str(getattr(array, "dtype", "")) for array in (one, two))
            if was != got and here is not None and there is not None:
                differences.append(
                    f"{second_name}[{place}].dtype: {first_name} gives {was}, got {got}"
                )
    if differences:
        raise SignatureMismatch(
            doing="comparing",
            subject=f"{first_name} and {second_name}",
            differences=differences,
            remedy="Return the same number of arrays of the same shapes from both.",
        )


def _shape(array: Any) -> object:
    if array is None:
        return None
    shape = getattr(array, "shape", None)
    return tuple(shape) if shape is not None else "unknown"
