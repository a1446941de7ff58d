"""Stand-ins: laid out as other tensors, for runs that tell the layout of a result, not values."""

from __future__ import annotations

import torch

__all__ = ["OverlappingStandIns", "StandIns", "flagged_as"]


class StandIns:
    """Makes them, each in memory of its own.

    Args:
        value: Of integers. Other numbers are a half: a probability, a coordinate, a sample.
    """

    def __init__(self, value: int) -> None:
        self._value = value

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """A stand-in for ``tensor``."""
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        return flagged_as(tensor, self._filled(made))

    def _filled(self, made: torch.Tensor) -> torch.Tensor:
        fraction = made.dtype.is_floating_point or made.dtype.is_complex
        return made.fill_(0.5 if fraction else self._value)


class OverlappingStandIns(StandIns):
    """Makes them so that they share memory as what they stand for does."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self._storages: dict[int, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """A stand-in for ``tensor``."""
        storage = tensor.untyped_storage()
        whole = self._storages.get(storage._cdata)
        if whole is None:
            elements = storage.nbytes() // tensor.dtype.itemsize
            whole = self._filled(torch.empty(elements, dtype=tensor.dtype))
            self._storages[storage._cdata] = whole
        made = whole.view(tensor.dtype).as_strided(
            tensor.size(), tensor.stride(), tensor.storage_offset()
        )
        return flagged_as(tensor, made)


def flagged_as(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """``made``, to be conjugated or negated when it is read if ``tensor`` is."""
    if tensor.is_conj():
        made = made.conj()
    return made._neg_view() if tensor.is_neg() else made
