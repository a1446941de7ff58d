"""Eager and captured steps from one state, side by side, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .recipe import Recipe
from .snapshot import named_state, preserved

__all__ = ["Difference", "Verification", "compare_with_eager", "ulps"]

_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class Difference(NamedTuple):
    """How one tensor came out otherwise."""

    name: str
    max_ulp: int
    """The most representable numbers between the two; for other dtypes than floats the difference
    itself."""
    max_absolute: float


@dataclass(frozen=True)
class Verification:
    """What ``step.verify`` found.

    Attributes:
        steps: How many were compared.
        tensors: How many were compared after the last of them, and losses.
        differences: Those that are not equal bit for bit.
    """

    steps: int
    tensors: int
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """True if everything is equal, bit for bit."""
        return not self.differences

    def __str__(self) -> str:
        compared = f"{self.steps} steps, {self.tensors} tensors"
        if self.equal:
            return f"{compared}: equal bit for bit"
        lines = [
            f"  {one.name}: {one.max_ulp} ulp, {one.max_absolute:.3g} at most"
            for one in self.differences
        ]
        return "\n".join([f"{compared}: {len(lines)} differ", *lines])


def compare_with_eager(
    recipe: Recipe,
    captured: Callable[[], torch.Tensor],
    batch: tuple[Any, Any],
    steps: int,
    *,
    fresh: bool,
) -> Verification:
    """Takes ``steps`` steps each way, and puts everything back.

    Args:
        recipe: The step, to take it eagerly.
        captured: Takes the captured step.
        batch: Inputs and targets of each step.
        steps: How many.
        fresh: No step was taken yet: the eager optimizer begins without state.
    """
    with _stateless(recipe) if fresh else nullcontext():
        eager, written = _taken(recipe, lambda: recipe.run(*batch).loss, steps)
    # What a launch writes shows in no operation.
    replayed, _ = _taken(recipe, captured, steps, written)
    return Verification(steps, len(eager), tuple(_differences(eager, replayed)))


@contextmanager
def _stateless(recipe: Recipe) -> Iterator[None]:
    state = recipe.optimizer.state
    before = dict(state)
    state.clear()
    try:
        yield
    finally:
        state.clear()
        state.update(before)


def _taken(
    recipe: Recipe,
    step: Callable[[], torch.Tensor],
    steps: int,
    also: Iterable[torch.Tensor] = (),
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Losses and state after steps that are undone, and what memory they wrote."""
    with preserved(recipe, also) as before, before.watching():
        found = {f"loss {number}": step().clone() for number in range(1, steps + 1)}
        found |= {name: one.detach().clone() for name, one in named_state(recipe).items()}
        return found, before.written


def _differences(
    eager: dict[str, torch.Tensor], replayed: dict[str, torch.Tensor]
) -> Iterator[Difference]:
    for name, one in eager.items():
        other = replayed[name]
        if not torch.equal(_bits(one), _bits(other)):
            absolute = (one.double() - other.double()).abs().nan_to_num().max().item()
            yield Difference(name, ulps(one, other), float(absolute))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point():
        return tensor
    # Both zeros are equal to all that computes with them.
    plain = torch.where(tensor == 0, torch.zeros_like(tensor), tensor).contiguous()
    return plain.view(_INTEGERS[tensor.element_size()])


def ulps(one: torch.Tensor, other: torch.Tensor) -> int:
    """The most representable numbers between two tensors of one floating dtype."""
    first, second = (_ordered(_bits(tensor)) for tensor in (one, other))
    return int((first - second).abs().max().item()) if first.numel() else 0


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Bits as integers that are in the order of the numbers they stand for."""
    wide = bits.to(torch.int64)
    least = torch.iinfo(bits.dtype).min
    return torch.where(wide < 0, least - wide, wide) if least else wide
