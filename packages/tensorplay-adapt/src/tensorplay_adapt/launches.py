"""What calling a step runs: a fresh batch in, launch, loss, metrics and transform result out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorplay_core.errors import ArgumentError, SignatureMismatch
from tensorplay_core.protocols import StagePlan
from tensorplay_torch import CUDAGraph
from tensorplay_torch.resources.signatures import differences
from tensorplay_torch.structure import structure_of

from .recipe import Outcome

__all__ = ["Launches", "plan_of"]


class Launches:
    """Staged launches of one captured step.

    Args:
        graph: It, or a ``torch.cuda.CUDAGraph``.
        static: What it reads a batch from.
        outcome: What it writes.
        device: Where it runs.
    """

    def __init__(
        self,
        graph: Any,
        static: Sequence[torch.Tensor],
        outcome: Outcome,
        device: torch.device,
    ) -> None:
        leaves: list[Any] = []
        self._structure = structure_of((outcome.metrics, outcome.transformed), leaves)
        paths = self._structure.paths("(metrics, transform result)")
        for path, leaf in zip(paths, leaves, strict=True):
            _refuse_unfit(path, leaf, device)
        self._leaves = leaves
        self._places = [n for n, leaf in enumerate(leaves) if leaf is not None]
        self.bare = not self._places
        self.run: StagePlan = plan_of(
            graph, static, [outcome.loss, *(leaves[n] for n in self._places)]
        )

    def built(self, results: Sequence[torch.Tensor]) -> tuple[dict[str, torch.Tensor], Any]:
        """Metrics and transform result of a launch that returned ``results``."""
        leaves = list(self._leaves)
        for place, result in zip(self._places, results[1:], strict=True):
            leaves[place] = result
        metrics, transformed = self._structure.build(iter(leaves))
        return metrics, transformed


def plan_of(
    graph: Any, static: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> StagePlan:
    """A strict plan of staged launches, for a graph of torch too."""
    if isinstance(graph, CUDAGraph):
        return graph.stage(static, results)
    return _ByTorch(graph.replay, static, results)


class _ByTorch:
    """Copies, torch's replay and clones: all that can be done for a graph that torch keeps."""

    def __init__(
        self,
        replay: Callable[[], None],
        static: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
    ) -> None:
        self._replay, self._static = replay, [tensor.detach() for tensor in static]
        self._results = [tensor.detach() for tensor in results]

    @torch.no_grad()
    def __call__(
        self, inputs: Sequence[Any], *, stream: object | None = None
    ) -> tuple[torch.Tensor, ...]:
        found = differences(self._static, inputs)
        if found:
            raise SignatureMismatch(differences=found, subject="a captured step")
        for buffer, given in zip(self._static, inputs, strict=True):
            buffer.copy_(given)
        self._replay()
        return tuple(tensor.clone() for tensor in self._results)


def _refuse_unfit(path: str, leaf: Any, device: torch.device) -> None:
    if leaf is None or (isinstance(leaf, torch.Tensor) and leaf.device == device):
        return
    said = f"a tensor on {leaf.device}" if isinstance(leaf, torch.Tensor) else repr(leaf)
    raise ArgumentError(
        doing="capturing a step that returns",
        subject=path,
        met=f"it is {said:.80}, which replays would not compute anew",
        remedy=f"Return tensors on {device}, or None.",
    )
