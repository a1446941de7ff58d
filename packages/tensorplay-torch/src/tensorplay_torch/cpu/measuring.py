"""Random operations, run for the layout of what they return without a draw from torch's generator.

Other threads draw from that one meanwhile. To put its state back would make them draw the same
numbers again, and would look to captures beside like a state that was set by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from tensorplay_torch.resources.generators import draws

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["drawing_elsewhere"]

aten = torch.ops.aten
GENERATOR = "generator"


def drawing_elsewhere(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """Computes what ``func`` computes and draws from a generator of its own.

    Args:
        func: An operation that may draw.
        args: What it is going to be called with.
        kwargs: The same.

    Returns:
        What to call in its place; None if there is no way.
    """
    if not draws(func, args, kwargs):
        return func
    return _elsewhere(func)


@cache
def _elsewhere(func: OpOverload) -> Callable[..., Any] | None:
    if func in WITHOUT:
        return WITHOUT[func]
    twin = func if GENERATOR in _names(func) else _twin(func)
    if twin is None:
        return None
    place = _names(twin).index(GENERATOR)

    def drawing(*args: Any, **kwargs: Any) -> Any:
        # Some operations take it in order.
        if place < len(args):
            args = (*args[:place], torch.Generator(), *args[place + 1 :])
        else:
            kwargs[GENERATOR] = torch.Generator()
        return twin(*args, **kwargs)

    return drawing


def _twin(func: OpOverload) -> OpOverload | None:
    """The overload that differs from ``func`` in that it takes a generator, by name."""
    packet = func.overloadpacket
    for one in (getattr(packet, name) for name in packet.overloads()):
        added = [each for each in one._schema.arguments if each.name == GENERATOR]
        rest = [each for each in one._schema.arguments if each.name != GENERATOR]
        named = all(each.kwarg_only for each in added)
        if (
            added
            and named
            and list(map(_spelled, rest)) == list(map(_spelled, func._schema.arguments))
        ):
            return one  # type: ignore[no-any-return]
    return None


def _spelled(argument: torch.Argument) -> tuple[str, str, bool]:
    return argument.name, str(argument.type), argument.kwarg_only


def _names(func: OpOverload) -> list[str]:
    return [argument.name for argument in func._schema.arguments]


def _native_dropout(
    tensor: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As torch does it, which takes no generator."""
    if not tensor.numel():
        # It draws nothing then, and returns a mask of another type.
        return aten.native_dropout(tensor, p, train)  # type: ignore[no-any-return]
    kept = 1.0 - p
    mask = aten.empty_like(tensor, dtype=torch.bool)
    aten.bernoulli_(mask, kept, generator=torch.Generator())
    return aten.mul_(aten.mul(tensor, mask), 1 / kept if kept else 0.0), mask


def _native_dropout_out(
    tensor: torch.Tensor, p: float, train: bool | None, *, out0: torch.Tensor, out1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    # For what is wrong with the arguments. What is written has the same shapes without draws, too.
    _native_dropout(tensor, p, train)
    train = False if tensor.numel() else train
    return aten.native_dropout(tensor, p, train, out0=out0, out1=out1)  # type: ignore[no-any-return]


WITHOUT: dict[OpOverload, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
    aten.native_dropout.out: _native_dropout_out,
}
"""Operations that no overload with a generator stands for."""
