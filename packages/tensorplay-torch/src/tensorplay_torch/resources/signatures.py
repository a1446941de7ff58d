"""Tensors compared with those of a capture: fast to say yes, slow and exact to say what differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

from tensorplay_torch._private import PRIVATE
from tensorplay_torch.compiled import parts

__all__ = ["PLAIN", "compare", "compile_check", "differences", "guard_of", "plain"]

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Types of tensors that nothing dispatches by itself."""

Check = Callable[[Sequence[Any]], bool]
_nested = attrgetter("is_nested")


def compile_check(static: Sequence[torch.Tensor]) -> Check:
    """A fast check of count, shape, strides, dtype, device and layout against ``static``.

    It may say no to tensors that would do (without compiled parts a Parameter, one that requires
    grad, any under autocast); ``differences`` decides then. It never says yes to tensors that would
    not.
    """
    if (compiled := parts()) is not None:
        return compiled.Forms(static)
    check = guard_of(static)
    if check is None:
        return lambda inputs: not differences(static, inputs)
    count = len(static)

    return lambda inputs: len(inputs) == count and plain(inputs) and check(*inputs)


def plain(inputs: Sequence[Any]) -> bool:
    """True for tensors none of which is nested: torch's guards end the process at one of those."""
    try:
        return not any(map(_nested, inputs))
    except AttributeError:
        return False


def guard_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """A check of torch's own for tensors like these, in modes like the present ones, if it has one.

    It is called with the tensors, as many as these, and says no to whatever differs in anything. It
    is to be called with ``plain`` tensors only.
    """
    guards = PRIVATE["tensor_guards"].value
    # Views with the conjugate or negative bit set carry it outside of what the guards compare.
    if guards is None or not tensors or any(map(_lazy_bits, tensors)):
        return None
    check: Callable[..., bool] = guards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return check


def differences(
    static: Sequence[torch.Tensor], inputs: Sequence[Any], name: str = "inputs"
) -> list[str]:
    """What keeps ``inputs`` from standing for ``static``, one line each, by path."""
    if len(inputs) != len(static):
        return [f"len({name}): captured {len(static)}, got {len(inputs)}"]
    return [
        line
        for place, (captured, given) in enumerate(zip(static, inputs, strict=True))
        for line in compare(captured, given, f"{name}[{place}]")
    ]


def compare(captured: torch.Tensor, given: object, path: str) -> list[str]:
    """What keeps ``given``, which is called ``path``, from standing for ``captured``."""
    if not isinstance(given, torch.Tensor):
        return [f"{path}: captured a tensor, got {type(given).__name__}"]
    if type(given) not in PLAIN and type(given) is not type(captured):
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        return [f"{path}: captured a plain tensor, got a {kind}, which dispatches by itself"]
    if given.is_nested:
        return [f"{path}: captured a plain tensor, got a nested one"]
    facts: list[tuple[str, object, object]] = [
        ("shape", tuple(captured.shape), tuple(given.shape)),
        ("dtype", captured.dtype, given.dtype),
        ("device", captured.device, given.device),
        ("layout", captured.layout, given.layout),
        ("is_conj", captured.is_conj(), given.is_conj()),
        ("is_neg", captured.is_neg(), given.is_neg()),
        # Zeros that autograd and forward derivatives make have no memory.
        ("_is_zerotensor", captured._is_zerotensor(), given._is_zerotensor()),
    ]
    if captured.layout == given.layout == torch.strided and captured.shape == given.shape:
        facts.append(("stride", _strides(captured), _strides(given)))
    return [f"{path}.{fact}: captured {was}, got {now}" for fact, was, now in facts if was != now]


def _strides(tensor: torch.Tensor) -> tuple[int | None, ...]:
    # The stride of a dimension of size 1 addresses nothing, and no dimension does in an empty one.
    if not tensor.numel():
        return ()
    return tuple(
        stride if size != 1 else None
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _lazy_bits(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()
