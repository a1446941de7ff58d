"""Tensors compared bit for bit, and tensors drawn like others."""

from __future__ import annotations

from collections.abc import Iterator

import torch

__all__ = ["difference", "drawn_like"]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """One row of bytes an element: NaN equals itself there, and 0.0 is not -0.0."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).view(plain.numel(), -1)


def difference(eager: torch.Tensor | None, replay: torch.Tensor | None) -> str:
    """How ``replay`` is not ``eager``, a clause; ``""`` if they are equal bit for bit."""
    if eager is None or replay is None:
        if eager is replay:
            return ""
        return f"eager has {_kind(eager)}, replay {_kind(replay)}"
    if (eager.shape, eager.dtype, eager.device) != (replay.shape, replay.dtype, replay.device):
        return f"eager is {_kind(eager)}, replay {_kind(replay)}"
    if not eager.numel():
        return ""
    other = (bits(eager) != bits(replay)).any(dim=1)
    count = int(other.sum())
    if not count:
        return ""
    place = int(other.nonzero()[0])
    index = tuple(int(one) for one in torch.unravel_index(torch.tensor(place), eager.shape))
    ours, theirs = (one.detach().reshape(-1)[place].item() for one in (eager, replay))
    said = f"{count} of {eager.numel()} elements differ, first at {index}: "
    return f"{said}eager {ours!r}, replay {theirs!r}{_largest(eager, replay)}"


def _kind(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "none"
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"


def _largest(eager: torch.Tensor, replay: torch.Tensor) -> str:
    if eager.dtype is torch.bool:
        return ""
    wide = torch.complex128 if eager.is_complex() else torch.float64
    apart = (eager.detach().to(wide) - replay.detach().to(wide)).abs()
    return f", largest difference {apart.nan_to_num(0.0).max().item():.3g}"


def drawn_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Other values for ``tensor``, of the kind that it holds: in the same range, or a shuffle.

    Args:
        tensor: Of which.
        generator: One of the CPU, to draw from.
    """
    values = tensor.detach().cpu()
    if not values.numel():
        return tensor.detach().clone()
    if values.is_complex():
        parts = [_within(part, generator) for part in _parts(values)]
        made = torch.complex(*parts)
    elif values.dtype.is_floating_point:
        made = _within(values, generator)
    elif values.dtype is torch.bool:
        made = torch.rand(values.shape, generator=generator) < 0.5
    else:
        # Token numbers, indices, labels: whichever are there are known to be valid.
        order = torch.randint(values.numel(), (values.numel(),), generator=generator)
        made = values.reshape(-1)[order].view(values.shape)
    return made.to(tensor.device, tensor.dtype)


def _parts(values: torch.Tensor) -> Iterator[torch.Tensor]:
    yield values.real
    yield values.imag


def _within(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    wide = values.double() if values.dtype is torch.float64 else values.float()
    finite = wide[wide.isfinite()]
    low, high = (finite.min(), finite.max()) if finite.numel() else (wide.new_zeros(()),) * 2
    if low == high:
        reach = low.abs() if low else wide.new_ones(())
        low, high = low - reach / 2, low + reach / 2
    return low + (high - low) * torch.rand(values.shape, generator=generator, dtype=wide.dtype)
