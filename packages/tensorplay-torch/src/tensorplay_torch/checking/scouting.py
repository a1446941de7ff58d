"""What a run of plain code does that no graph could: looked at by the gates of real captures.

Nothing is captured and nothing refused. What a gate would refuse is noted, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tensorplay_core.errors import OperationRefused
from tensorplay_core.protocols import CaptureOptions
from tensorplay_torch.cpu.admission import Admission
from tensorplay_torch.cpu.functions import SEQUENCES, HostReads
from tensorplay_torch.resources.generators import TAKES_IN_ANY, draws, identity
from tensorplay_torch.resources.storages import key_of
from tensorplay_torch.tracking.culprit import compiled, where
from tensorplay_torch.tracking.operands import DeviceListener
from tensorplay_torch.tracking.operations import Kind, Operation, describe, tensors_in
from tensorplay_torch.tracking.refusals import Reason, refused

from .findings import Findings, host_draw

__all__ = ["FunctionScout", "OperationScout"]


class FunctionScout(HostReads):
    """Notes the calls that a capture's function mode refuses.

    Args:
        findings: Where.
        device: What a capture would run on.
        rebinding: As for ``HostReads``.
    """

    def __init__(
        self, findings: Findings, device: torch.device, rebinding: Callable[[Tensor], None]
    ) -> None:
        super().__init__(rebinding)
        self._findings, self._cpu = findings, device.type == "cpu"

    def admit(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Notes what is refused, and lets it pass."""
        # On CUDA a capture has no function mode: what counts is what the operations do. But torch
        # hides those of some functions.
        if self._cpu or func == DATA or (func in HIDING and _on_device(args)):
            try:
                super().admit(func, args, kwargs)
            except OperationRefused as error:
                self._findings.refusal(error)


class OperationScout:
    """A listener of ``CaptureDispatch`` that notes the operations which a capture refuses.

    Args:
        findings: Where.
        device: What a capture would run on.
        is_born: True for a tensor whose memory the run itself made.
        leaf: Is told of each tensor that requires grad and is used.
    """

    def __init__(
        self,
        findings: Findings,
        device: torch.device,
        *,
        is_born: Callable[[Tensor], bool],
        leaf: Callable[[Tensor], None],
    ) -> None:
        self._findings, self._device, self._is_born, self._leaf = findings, device, is_born, leaf
        self._admission = Admission(self)
        self._gate: DeviceListener | None = None
        if device.type != "cpu":
            self._gate = DeviceListener(device.type, CaptureOptions())
        self.written: dict[int, tuple[Tensor, str, str]] = {}

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Notes what the gate of a capture would say."""
        for tensor in (*tensors_in(args), *tensors_in(kwargs.values())):
            if tensor.requires_grad:
                self._leaf(tensor)
        try:
            if self._gate is not None:
                self._gate.before(func, args, kwargs)
                self._drawn_elsewhere(func, args, kwargs)
            else:
                self._check_on_cpu(func, args, kwargs)
        except OperationRefused as error:
            self._findings.refusal(error)
        if isinstance(func, OpOverload):
            self._note_writes(describe(func), args, kwargs)

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Takes in what the operation made."""
        if self._gate is not None:
            self._gate.after(func, args, kwargs, result)

    def draw(self, operation: object, generator: torch.Generator | None) -> None:
        """Notes a draw from a generator that a graph would have to be told of."""
        if generator is not None and identity(generator) != identity(torch.default_generator):
            raise refused(operation, Reason.RNG_UNREGISTERED)

    def _check_on_cpu(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not isinstance(func, OpOverload):
            raise refused(func, Reason.HIGHER_ORDER)
        operation = describe(func)
        if operation.kind is Kind.UNRECORDED or operation.composite:
            return
        if compiled():
            raise refused(func, Reason.COMPILED)
        if self._admission.elsewhere(operation, args, kwargs):
            return
        self._admission.check(operation, args, kwargs, in_body=False)
        if operation.kind is Kind.METADATA and not self._is_born(args[0]):
            raise refused(func, Reason.MOVES_EXTERNAL)

    def _drawn_elsewhere(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """On CUDA: draws of the host, and from generators that a graph must be told of."""
        if not isinstance(func, OpOverload) or not describe(func).seeded:
            return
        if not draws(func, args, kwargs):
            return
        tensors = [*tensors_in(args), *tensors_in(kwargs.values())]
        device = kwargs.get("device") or (tensors[0].device if tensors else torch.device("cpu"))
        generator = kwargs.get("generator")
        if torch.device(device).type != self._device.type:
            operation = describe(func).name
            self._findings.add(host_draw(operation, where(), self._device))
        elif generator is not None and not TAKES_IN_ANY:
            default = torch.cuda.default_generators[self._device.index or 0]
            if identity(generator) != identity(default):
                raise refused(func, Reason.RNG_UNREGISTERED)

    def _note_writes(
        self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if not operation.writes:
            return
        for tensor in operation.written(args, kwargs):
            if not self._is_born(tensor):
                key = key_of(tensor)
                self.written.setdefault(key, (tensor, operation.name, where()))


def _on_device(values: Sequence[Any]) -> bool:
    return any(
        not value.is_cpu if isinstance(value, Tensor) else _on_device(value)
        for value in values
        if isinstance(value, Tensor | list | tuple)
    )


DATA = Tensor.data.__set__  # type: ignore[attr-defined]
HIDING = SEQUENCES | {Tensor.__repr__, Tensor.__format__}
"""Functions inside which torch shows no operation, and which read values on the host."""
