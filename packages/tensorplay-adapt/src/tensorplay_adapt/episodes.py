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

    def saved_in(self, snapshot: Snapshot) -> list[torch.Tensor]:
        """What a snapshot holds of the state, in order.

        Raises:
            SignatureMismatch: It is a snapshot of another state.
        """
        saved = snapshot.tensors_for(self._names)
        found = [
            f"{name}: {tuple(live.shape)}, {live.dtype}; saved {tuple(one.shape)}, {one.dtype}"
            for name, live, one in zip(self._names, self._live, saved, strict=True)
            if live.shape != one.shape or live.dtype != one.dtype
        ]
        if found:
            raise SignatureMismatch(
                differences=found,
                subject=repr(snapshot),
                doing="resetting to",
                remedy="Take a snapshot of this step: step.snapshot().",
            )
        return saved

    @torch.no_grad()
    def fill(self, saved: list[torch.Tensor]) -> None:
        """Fills the state with what a snapshot holds of it."""
        try:
            self._plan(saved)
        except SignatureMismatch:  # Memory with gaps cannot be staged.
            torch._foreach_copy_(self._live, saved)

    def close(self) -> None:
        """Ends the graph. Idempotent."""
        self._graph.close()
