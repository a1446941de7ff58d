"""Back to a snapshot in one launch, as adaptation at test time wants between episodes."""

from __future__ import annotations

import torch

from tensorplay_core.errors import SignatureMismatch
from tensorplay_torch import CUDAGraph, graph

from .snapshot import Snapshot

__all__ = ["Episodes"]


class Episodes:
    """A graph whose staged inputs are the state itself: one launch fills all of it.

    Args:
        state: The live tensors, by name.
        device: Where they are.
    """

    def __init__(self, state: dict[str, torch.Tensor], device: torch.device) -> None:
        self._names = list(state)
        self._live = [tensor.detach() for tensor in state.values()]
        mark = torch.zeros((), device=device)
        self._graph = CUDAGraph(device=device)
        with graph(self._graph, capture_error_mode="thread_local"):
            mark.zero_()
        # By its first launch torch finds out that it need not be there for the others.
        self._graph.replay()
        self._plan = self._graph.stage(self._live)

    @torch.no_grad()
    def reset_to(self, snapshot: Snapshot) -> None:
        """Fills the state from a snapshot.

        Raises:
            SignatureMismatch: It is a snapshot of another state; nothing was changed.
        """
        saved = snapshot.tensors_for(self._names)
        try:
            self._plan(saved)
        except SignatureMismatch:
            for live, value in zip(self._live, saved, strict=True):
                if live.shape != value.shape or live.dtype != value.dtype:
                    raise
            # Memory with gaps cannot be staged.
            torch._foreach_copy_(self._live, saved)

    def close(self) -> None:
        """Ends the graph. Idempotent."""
        self._graph.close()
