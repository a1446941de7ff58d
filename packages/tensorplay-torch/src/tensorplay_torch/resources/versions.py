"""Version counters of tensors that a capture wrote without changing them."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from tensorplay_torch._private import PRIVATE

if TYPE_CHECKING:
    import torch

__all__ = ["Versions"]


class Versions:
    """What the counters stood at before a capture.

    torch counts a write when the operation returns, also if that was only recorded. Inside the
    capture the counts let autograd refuse what it would refuse in eager code; after it they would
    make a pending backward pass fail over a write that has not happened.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, int]] = {}

    def note(self, tensor: torch.Tensor) -> None:
        """``tensor`` is about to be written."""
        if id(tensor) not in self._before and not tensor.is_inference():
            self._before[id(tensor)] = (tensor, tensor._version)

    def forget(self, owned: Container[int]) -> None:
        """Leaves alone the tensors whose memory begins at one of these addresses."""
        for key, (tensor, _) in list(self._before.items()):
            if tensor.untyped_storage().data_ptr() in owned:
                del self._before[key]

    def restore(self) -> None:
        """Puts the counters back."""
        set_versions = PRIVATE["set_versions"].value
        if set_versions is not None and self._before:
            # Views share a counter with their base; what was noted first counts.
            tensors, versions = zip(*reversed(self._before.values()), strict=True)
            set_versions(tensors, versions)
        self._before.clear()
