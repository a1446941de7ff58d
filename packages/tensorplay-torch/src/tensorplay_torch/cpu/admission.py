"""What a CPU capture does not let in, told from the operation and its arguments alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from tensorplay_torch.resources.generators import draws
from tensorplay_torch.tracking.operations import Kind, Operation, tensors_in, value_reason
from tensorplay_torch.tracking.refusals import Reason, refused, scheduled

__all__ = ["Admission", "Draws"]

COLLECTIVES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d"})
PACKED = frozenset({"aten._pack_padded_sequence", "aten._pad_packed_sequence"})
TORCH_OWN = frozenset({"aten", "prim", "prims"})


class Draws(Protocol):
    """What is told of draws."""

    def draw(self, operation: object, generator: torch.Generator | None) -> None:
        """``operation`` draws from ``generator``, where None is the default one."""
        ...


class Admission:
    """The gate that each operation passes before it is recorded.

    Args:
        random: Is told of each draw.
    """

    def __init__(self, random: Draws) -> None:
        self._random = random

    def elsewhere(
        self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool:
        """True for work on meta tensors, which computes nothing and is none of the graph's.

        Raises:
            OperationRefused: The work is on another device than the CPU.
        """
        devices = {one.device.type for one in (*tensors_in(args), *tensors_in(kwargs.values()))}
        if operation.placed and kwargs.get("device") is not None:
            devices.add(torch.device(kwargs["device"]).type)
        if devices == {"meta"}:
            return True
        if devices - {"cpu"} or kwargs.get("pin_memory"):
            raise refused(operation.func, Reason.OTHER_DEVICE)
        return False

    def check(
        self,
        operation: Operation,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        in_body: bool,
    ) -> None:
        """Lets the operation pass.

        Args:
            operation: Which.
            args: Its arguments.
            kwargs: The same.
            in_body: A conditional's body is captured.

        Raises:
            OperationRefused: It cannot be captured.
        """
        reason = self._reason(operation, args, kwargs)
        if reason is not None:
            raise refused(operation.func, reason)
        if draws(operation.func, args, dict(kwargs)):
            if in_body:
                raise refused(operation.func, Reason.RNG_IN_BODY)
            # Some operations take it in order.
            given = (one for one in (*args, *kwargs.values()) if isinstance(one, torch.Generator))
            self._random.draw(operation.func, next(given, None))

    def _reason(
        self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Reason | None:
        namespace = operation.func.namespace
        if namespace in COLLECTIVES:
            return Reason.COLLECTIVE
        if operation.kind is Kind.QUERY and namespace not in TORCH_OWN:
            return Reason.CUSTOM_QUERY
        for tensor in (*tensors_in(args), *tensors_in(kwargs.values())):
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
                return Reason.SPARSE
        if operation.name in PACKED:
            return Reason.VALUE_SHAPE
        if operation.kind is Kind.WRITE and scheduled(operation.name, args):
            return Reason.SCHEDULE
        return value_reason(operation, args, kwargs)
