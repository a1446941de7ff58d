"""What of torch's own state in this thread a capture must leave as it found it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

__all__ = ["Surroundings"]

KINDS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Grad mode and autocast of this thread, as they were when this was made.

    Autocast keeps the low-precision copies of parameters it has made, per thread. A copy made
    before a capture would be a frozen input of the graph, one made in a capture would reach eager
    code before any replay has filled it, so the copies are dropped on either side.
    """

    grad: bool = field(default_factory=torch.is_grad_enabled)
    autocast: tuple[bool, ...] = field(
        default_factory=lambda: tuple(map(torch.is_autocast_enabled, KINDS))
    )
    dtypes: tuple[torch.dtype, ...] = field(
        default_factory=lambda: tuple(map(torch.get_autocast_dtype, KINDS))
    )
    cache: bool = field(default_factory=torch.is_autocast_cache_enabled)

    def __post_init__(self) -> None:
        torch.clear_autocast_cache()

    def restore(self) -> None:
        """Puts them back."""
        torch.set_grad_enabled(self.grad)
        for kind, enabled, dtype in zip(KINDS, self.autocast, self.dtypes, strict=True):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        torch.clear_autocast_cache()
