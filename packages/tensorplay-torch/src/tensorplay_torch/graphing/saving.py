"""What a forward saves for its backward of memory that is not its own: parameters above all.

Eager counts writes to it in between, and refuses the backward. A replay would read the new values,
so calls compare the counts as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from tensorplay_torch.resources.storages import key_of

__all__ = ["Saved", "Saving"]


class Saved(NamedTuple):
    """A tensor that a backward reads and others may write."""

    tensor: torch.Tensor
    """An alias, which counts writes together with the tensor itself."""
    name: str


class Saving:
    """Sees what autograd saves while entered, and keeps it as autograd would.

    Args:
        names: What errors call memory that is not the forward's own, by key of its storage.
        inputs: Keys of the input buffers, which are the forward's own.

    Attributes:
        saved: What was saved of such memory.
        checks: A backward is refused after a write to what it saved, as without this. Replays count
            as writes of the very values that a later backward wants, so for one there is no check.
    """

    def __init__(self, names: Mapping[int | None, str], inputs: Collection[int]) -> None:
        self.saved: list[Saved] = []
        self.checks = True
        self._names = {key: name for key, name in names.items() if key not in inputs}

    def seeing(self) -> AbstractContextManager[None]:
        """What to run the forward in."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        # An alias without history: the tensor itself may hold the node that is to hold it.
        alias = tensor.detach()
        if alias.layout == torch.strided:
            name = self._names.pop(key_of(alias), None)
            if name is not None:
                self.saved.append(Saved(alias, name))
        return alias, -1 if alias.is_inference() else alias._version

    def _unpack(self, packed: tuple[torch.Tensor, int]) -> Any:
        tensor, version = packed
        # A capture on the CPU takes back the counts of what it wrote, so they may be lower.
        if self.checks and version >= 0 and tensor._version > version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of shape {tuple(tensor.shape)} is at version "
                f"{tensor._version}; expected version {version} instead."
            )
        return tensor
