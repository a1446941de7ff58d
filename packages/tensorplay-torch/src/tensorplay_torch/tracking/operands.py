"""Which storages captured work uses that were not born in the capture, and that they live.

``Operands(options)`` is fed each operation in turn by ``see``. A storage that an operation reads or
writes before any operation returned it is external: it is kept alive with the graph, or with
``check_input_liveness`` only watched, and ``dead()`` lists those that have died. Storages born in
the capture are never kept: that would defeat the reuse of their memory. It works on every device,
also for work that autograd runs on a thread of its own. ``mark()`` and ``writes_to(tensor, since=
mark)`` tell whether a part of the capture wrote a tensor's memory.

``DeviceListener(device, options)`` is a listener of ``CaptureDispatch`` for captures that run their
work, as on CUDA: it feeds ``.operands`` and ``.bindings`` and refuses by name what would break or
escape the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tensorplay_core.protocols import CaptureOptions
from tensorplay_torch.compiled import parts
from tensorplay_torch.resources.storages import Pins, key_of
from tensorplay_torch.resources.versions import Versions

from .culprit import name_of, where
from .liveness import Input
from .operations import Kind, Operation, describe, tensors_in, value_reason
from .refusals import Reason, refused, scheduled
from .state import Bindings

__all__ = ["DeviceListener", "Operands"]


class Operands:
    """See the module.

    Args:
        options: Whether to keep external storages or to watch them.
        held: How many references to a storage are the graph's own, and so no sign of life; None
            if it has none.

    Attributes:
        retained: The external storages that are kept, by key.
    """

    def __init__(self, options: CaptureOptions, held: Callable[[int], int] | None = None) -> None:
        self._weak = options.check_input_liveness
        self._held = held
        # Storages met so far, by key: True for those born in the capture. The keys stay theirs as
        # long as the storages are kept, watched or pinned.
        self._known: dict[int, bool] = {}
        self._pins = Pins()
        self._watched: dict[int, Input] = {}
        self._written: dict[int, int] = {}
        self._clock = 0
        self.retained: dict[int, object] = {}

    def see(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        leaf: Callable[[Tensor], object] | None = None,
    ) -> None:
        """Takes in an operation that has run or has been recorded.

        ``leaf`` is called with each argument that requires grad and may be a leaf.
        """
        self._clock += 1
        if self._watched and self._held is not None:
            self._meet(args, kwargs)
        known = self._known
        for values in (args, tuple(kwargs.values())) if kwargs else (args,):
            for tensor in strangers(values, known):
                if leaf is not None and tensor.requires_grad:
                    leaf(tensor)
                self._use(tensor, func)
        if isinstance(func, OpOverload):
            operation = describe(func)
            if operation.writes:
                for tensor in operation.written(args, kwargs):
                    self.wrote(tensor)
        for tensor in born(result, known, self._pins.held, self._written, self._clock):
            self._bear(tensor)

    def own(self, constant: torch.Tensor) -> None:
        """Takes in a tensor made from Python numbers, which no operation fills: it is kept."""
        self._bear(constant)
        self.retained[key_of(constant)] = constant.untyped_storage()

    def wrote(self, tensor: torch.Tensor) -> None:
        """The memory of ``tensor`` is changed now."""
        try:
            self._written[key_of(tensor)] = self._clock
        except NotImplementedError:
            return

    def is_born(self, tensor: torch.Tensor) -> bool:
        """True if the tensor's memory was born in this capture."""
        try:
            return self._known.get(key_of(tensor), False)
        except NotImplementedError:
            return False

    def is_kept(self, tensor: torch.Tensor) -> bool:
        """True if the tensor's memory is kept with the graph: external, or that of a constant."""
        try:
            return key_of(tensor) in self.retained
        except NotImplementedError:
            return False

    def mark(self) -> int:
        """This point of the capture, for ``writes_to``."""
        return self._clock

    def writes_to(self, tensor: torch.Tensor, *, since: int = 0) -> bool:
        """True if the memory of ``tensor`` was written after ``mark()`` returned ``since``."""
        return self._written.get(key_of(tensor), 0) > since

    def dead(self) -> tuple[str, ...]:
        """The watched external storages that nobody but the graph holds any more, described."""
        return tuple(str(one) for one in self._watched.values() if one.dead)

    def take_in(self, tensors: Iterable[Tensor], used: str) -> None:
        """Captured work that was no operation uses ``tensors``, as ``used`` says."""
        for tensor in tensors:
            self._use(tensor, used)

    def disown(self, owned: Callable[[], Container[int]]) -> None:
        """Watches no storage in memory that the graph's pool holds: that stays as long as it does.

        Args:
            owned: Makes the addresses of that memory; called only if anything is watched.
        """
        if self._watched:
            own = owned()
            for key in [key for key, one in self._watched.items() if one.address in own]:
                del self._watched[key]

    def seal(self) -> None:
        """The capture is over: forgets what was born in it, and keeps what is external."""
        self._known.clear()
        self._written.clear()
        self._pins.clear()

    def _bear(self, tensor: torch.Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            return
        key = storage._cdata
        if key not in self._known:
            self._known[key] = True
            self._pins.add(storage)
            self._written[key] = self._clock

    def _use(self, tensor: torch.Tensor, func: Any) -> None:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            # Without a storage of its own the tensor is kept whole.
            self.retained.setdefault(id(tensor), tensor)
            return
        key = storage._cdata
        if key in self._known:
            return
        self._known[key] = False
        if self._weak:
            used = func if isinstance(func, str) else _used(func)
            self._watched[key] = Input(tensor, used, self._held)
        else:
            self.retained[key] = storage

    def _meet(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for tensor in (*tensors_in(args), *tensors_in(kwargs.values())):
            try:
                met = self._watched.get(key_of(tensor))
            except NotImplementedError:
                continue
            if met is not None:
                met.meet(tensor)


class DeviceListener:
    """See the module.

    Args:
        device: Type of the device that captures.
        options: What to do with operands.

    Attributes:
        operands: What was used.
        bindings: What Python came to be bound to.
        versions: Of the external tensors that were written, as they were.
    """

    def __init__(self, device: str, options: CaptureOptions) -> None:
        self.versions = Versions()
        self.operands = Operands(options)
        self.bindings = Bindings(self.operands.is_born)
        self._device = device

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuses what would read a value back, wait, or run on the host once and for all."""
        if not isinstance(func, OpOverload):
            return
        operation = describe(func)
        if operation.writes:
            for tensor in operation.written(args, kwargs):
                if not self.operands.is_born(tensor):
                    self.versions.note(tensor)
        if operation.plain:
            return
        reason = value_reason(operation, args, kwargs)
        if reason is not None:
            if self._on_device(args):
                raise refused(func, reason)
        elif operation.name in COPIES:
            self._refuse_waiting(operation, args, kwargs)
        elif operation.kind is Kind.WRITE:
            if scheduled(operation.name, args):
                raise refused(func, Reason.SCHEDULE)
            self._refuse_host_write(operation, args, kwargs)

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Takes in the operation."""
        if func is LIFT_FRESH:
            self.operands.own(result)
        self.operands.see(func, args, kwargs, result, self.bindings.leaf)

    def _on_device(self, args: Sequence[Any]) -> bool:
        return any(tensor.device.type == self._device for tensor in tensors_in(args))

    def _refuse_host_write(
        self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        for tensor in operation.written(args, kwargs):
            if tensor.device.type == "cpu" and not self.operands.is_born(tensor):
                raise refused(operation.func, Reason.HOST_WRITE)

    def _refuse_waiting(
        self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if operation.name == "aten.copy_":
            target, source = args[0].device.type, args[1].device.type
            patient = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        else:
            device = kwargs.get("device")
            source = args[0].device.type
            target = torch.device(device).type if device is not None else source
            patient = kwargs.get("non_blocking", False)
        if {source, target} == {"cpu", self._device} and not patient:
            raise refused(operation.func, Reason.BLOCKING_COPY)
        if operation.kind is Kind.WRITE and source != self._device:
            self._refuse_host_write(operation, args, kwargs)


COPIES = frozenset({"aten.copy_", "aten._to_copy"})
LIFT_FRESH = torch.ops.aten.lift_fresh.default


def _strangers(values: Sequence[Any], known: Mapping[int, Any]) -> list[Tensor]:
    """The tensors among ``values`` that need a closer look."""
    return [tensor for tensor in tensors_in(values) if _is_strange(tensor, known)]


def _is_strange(tensor: Tensor, known: Mapping[int, Any]) -> bool:
    if tensor.requires_grad:
        return True
    try:
        return key_of(tensor) not in known
    except NotImplementedError:
        return True


def _born(result: object, known: dict[int, bool], *_: object) -> list[Tensor]:
    """All of them: nothing is taken in here."""
    return _strangers((result,), known)


_compiled = parts()
strangers: Callable[[Sequence[Any], dict[int, Any]], Sequence[Tensor]] = (
    _strangers if _compiled is None else _compiled.strangers
)
born: Callable[..., Sequence[Tensor]] = _born if _compiled is None else _compiled.born


def _used(func: Any) -> str:
    place = where()
    return f"{name_of(func)}{f' at {place}' if place else ''}"
