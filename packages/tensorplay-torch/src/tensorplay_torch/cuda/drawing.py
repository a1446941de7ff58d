"""Random numbers in a capture: which operations draw them, from which generators, and in bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from tensorplay_torch.resources.generators import Generators, draws
from tensorplay_torch.tracking.operations import describe, tensors_in
from tensorplay_torch.tracking.refusals import Reason, refused

__all__ = ["Drawing"]


class Drawing:
    """A listener of ``CaptureDispatch``; see the module.

    Args:
        generators: Those that the graph may draw from; generators that are seen are added.

    Attributes:
        drew: An operation drew random numbers.
        unsure: What an operation runs inside it was not seen.
        bodies: How many conditional bodies are open.
        kept: What they use on the host.
        last: The last operation.
    """

    def __init__(self, generators: Generators) -> None:
        self._generators = generators
        self.drew = self.unsure = False
        self.bodies = 0
        self.kept: list[object] = []
        self.last: object = None

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuses to draw in a body."""
        self.last = func
        operation = describe(func) if isinstance(func, OpOverload) else None
        if operation is None or operation.opaque:
            # What runs inside it is not seen.
            self.unsure = True
        if self.bodies:
            # A body's host memory is none of the pool's: torch would reuse it once it is dropped.
            self.kept.extend(
                tensor.untyped_storage()
                for tensor in (*tensors_in(args), *tensors_in(kwargs.values()))
                if tensor.device.type == "cpu" and tensor.dim()
            )
        if operation is None or not operation.seeded or not draws(operation.func, args, kwargs):
            return
        if self.bodies:
            raise refused(func, Reason.RNG_IN_BODY)
        self.drew = True
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator):
                self._generators.saw(value)

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Nothing more is to be seen."""
