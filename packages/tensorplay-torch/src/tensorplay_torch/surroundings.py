"""What of torch's own state in this thread a capture must leave as it found it."""

from __future__ import annotations

import torch

__all__ = ["Surroundings"]


class Surroundings:
    """Grad mode and autocast of this thread, as they were when this was made.

    Autocast keeps the low-precision copies of parameters it has made, per thread. A copy made
    before a capture would be a frozen input of the graph, one made in a capture would reach eager
    code before any replay has filled it, so the copies are dropped on either side.
    """

    __slots__ = ("_cache", "_cpu", "_cuda", "_grad")

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._cpu = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        self._cuda = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        self._cache = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()

    def restore(self) -> None:
        """Puts them back."""
        torch.set_grad_enabled(self._grad)
        for kind, (enabled, dtype) in (("cpu", self._cpu), ("cuda", self._cuda)):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self._cache)
        torch.clear_autocast_cache()
