"""State that a callable makes at its first call and writes at later ones: a replay cannot have it.

Warm-up calls would be those first calls. A replay would go on from what they left, where the
callable itself would begin anew, so such state has to be there before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch._ops import OpOverload

from tensorplay_core.errors import OperationRefused
from tensorplay_torch.resources.storages import Watched, key_of
from tensorplay_torch.tracking.culprit import where
from tensorplay_torch.tracking.operations import describe, tensors_in

from .candidate import Candidate

if TYPE_CHECKING:
    import torch

__all__ = ["Lasting"]


class Lasting:
    """Sees what one warm-up call makes and another writes. A listener of ``CaptureDispatch``."""

    def __init__(self) -> None:
        self._call = 0
        self._born: dict[int, tuple[int, Watched]] = {}
        self._inputs: dict[int, str] = {}
        self._candidate: Candidate | None = None

    def begin(self, candidate: Candidate) -> None:
        """A warm-up call of ``candidate`` begins."""
        self._call += 1
        if candidate is not self._candidate:
            self._candidate = candidate
            arguments = candidate.arguments
            pairs = zip(arguments.tensors, arguments.paths, strict=True)
            self._inputs = {key: path for one, path in pairs if (key := _key(one)) is not None}

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuses writes to inputs, and to what an earlier call made.

        Raises:
            OperationRefused: It is such a write.
        """
        candidate = self._candidate
        if not isinstance(func, OpOverload) or candidate is None:
            return
        for tensor in describe(func).written(args, kwargs):
            key = _key(tensor)
            if key is None:
                continue
            if key in self._inputs:
                raise candidate.writes(self._inputs[key])
            born = self._born.get(key)
            if born is not None and born[0] != self._call:
                raise OperationRefused(
                    operation=str(func),
                    where=where(),
                    doing="graphing",
                    subject=candidate.subject,
                    met=f"it writes a tensor of shape {tuple(tensor.shape)} that its first call "
                    "made, and a replay would go on from what the warm-up calls left in it",
                    remedy="Make that state before: call the callable once without graphs, so that "
                    "buffers, gradients and the state of optimizers exist.",
                )

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Takes in what was born."""
        given = {_key(tensor) for tensor in tensors_in((*args, *kwargs.values()))}
        for tensor in tensors_in((result,)):
            key = _key(tensor)
            if key is not None and key not in given and key not in self._born:
                # While it is watched, its key is given to no other storage.
                self._born[key] = (self._call, Watched(tensor))


def _key(tensor: torch.Tensor) -> int | None:
    try:
        return key_of(tensor)
    except NotImplementedError:  # It has no storage.
        return None
