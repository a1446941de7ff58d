"""The torch functions that a dispatch mode does not see, and a CPU capture must."""

from __future__ import annotations

import array
import copy
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.nn.functional import multi_head_attention_forward
from torch.overrides import TorchFunctionMode

from tensorplay_core.errors import OperationRefused
from tensorplay_torch.tracking.culprit import frames
from tensorplay_torch.tracking.modes import FUNCTION
from tensorplay_torch.tracking.refusals import Reason, refused

__all__ = ["SEQUENCES", "HostReads"]

REFUSED: Mapping[Any, tuple[str, Reason]] = {
    Tensor.item: ("Tensor.item", Reason.HOST_READ),
    Tensor.tolist: ("Tensor.tolist", Reason.HOST_READ),
    Tensor.apply_: ("Tensor.apply_", Reason.HOST_READ),
    Tensor.map_: ("Tensor.map_", Reason.HOST_READ),
    Tensor.map2_: ("Tensor.map2_", Reason.HOST_READ),
    Tensor.__bool__: ("bool(tensor)", Reason.HOST_READ),
    Tensor.__int__: ("int(tensor)", Reason.HOST_READ),
    Tensor.__float__: ("float(tensor)", Reason.HOST_READ),
    Tensor.__complex__: ("complex(tensor)", Reason.HOST_READ),
    Tensor.__index__: ("operator.index(tensor)", Reason.HOST_READ),
    Tensor.__contains__: ("element in tensor", Reason.HOST_READ),
    Tensor.__repr__: ("repr(tensor)", Reason.HOST_READ),
    Tensor.__format__: ("format(tensor)", Reason.HOST_READ),
    Tensor.numpy: ("Tensor.numpy", Reason.MEMORY),
    Tensor.__array__: ("numpy.asarray(tensor)", Reason.MEMORY),
    Tensor.__dlpack__: ("Tensor.__dlpack__", Reason.MEMORY),
    Tensor.data_ptr: ("Tensor.data_ptr", Reason.MEMORY),
    Tensor.data.__set__: ("Tensor.data = ...", Reason.DATA_ASSIGNMENT),  # type: ignore[attr-defined]
    Tensor.__deepcopy__: ("copy.deepcopy(tensor)", Reason.COPIED_BY_BYTES),
    Tensor.share_memory_: ("Tensor.share_memory_", Reason.MOVES_EXTERNAL),
}
BINDINGS = frozenset({Tensor.grad.__set__, Tensor.grad.__delete__})  # type: ignore[union-attr]
SEQUENCES = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor, Tensor.new})
"""They read the numbers of tensors inside the sequences that they are given."""
BYTES = Tensor.untyped_storage
"""What reads the bytes of a tensor asks for these first; so do many who mean no harm."""
PICKLERS = frozenset({Tensor._reduce_ex_internal.__code__, reduce_tensor.__code__})
"""They ask for them to pickle, save, or send to another process."""
NUMBERS = (str, bytes, bytearray, memoryview, range, array.array)
"""Sequences that hold no tensor."""
SPLITS = frozenset({torch.tensor_split, Tensor.tensor_split})
"""They read where to split from a tensor."""
COMPILED_BACKWARD = "CompiledFunctionBackward"
"""Name of autograd's node for a region that torch.compile compiled."""


class HostReads(TorchFunctionMode):
    """Refuses by name what reads or moves a tensor's memory on the host.

    It stays on during backward passes too, whose hooks and custom functions are the user's code.

    Args:
        rebinding: Is told of each tensor whose ``.grad`` is about to be bound to something else.

    Attributes:
        refusal: The first call that was refused, but for those that torch makes to find out.
    """

    def __init__(self, rebinding: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._rebinding = rebinding
        self.depth: int | None = None
        self.refusal: OperationRefused | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        try:
            self.admit(func, args, keywords)
        except OperationRefused as error:
            # torch's own parser asks tensors in lists whether they are indices, and takes a no.
            if func is not Tensor.__index__:
                self.refusal = self.refusal or error
            raise
        if func in BINDINGS:
            self._rebinding(args[0])
        beneath = DIFFERENTIATE.get(func)
        if beneath is not None:
            with self:
                return beneath(*args, **keywords)
        return func(*args, **keywords)

    def admit(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Lets a call pass.

        Raises:
            OperationRefused: It cannot be captured.
        """
        if func in REFUSED:
            name, reason = REFUSED[func]
            raise refused(name, reason)
        if func is BYTES and _pickled():
            raise refused("pickling a tensor", Reason.COPIED_BY_BYTES)
        if func in SEQUENCES and any(map(_holds_tensor, (*args, *kwargs.values()))):
            raise refused("making a tensor from numbers in tensors", Reason.HOST_READ)
        if func in SPLITS and any(isinstance(one, Tensor) for one in (*args[1:], *kwargs.values())):
            raise refused("Tensor.tensor_split by a tensor", Reason.HOST_READ)
        if func is multi_head_attention_forward and _leaves_fast_path(args, kwargs):
            raise refused("nn.MultiheadAttention", Reason.FAST_ATTENTION)
        if func in DIFFERENTIATE:
            _refuse_compiled(args[0] if args else next(iter(kwargs.values())))

    def start(self) -> None:
        """Begins to see this thread's calls."""
        _hide_from_compile()
        FUNCTION.enter(self)

    def stop(self) -> None:
        """Stops, wherever the mode stands in the stack. Idempotent.

        Raises:
            CaptureError: Other modes were not nested with this one.
        """
        FUNCTION.leave(self)


@functools.cache
def _hide_from_compile() -> None:
    """Once, at the first capture: it imports the compiler, which importing this package must not.

    torch.compile would trace into the method, and compile each operation by itself.
    """
    seen = torch.compiler.disable(
        HostReads.__torch_function__,
        reason="a capture on the CPU cannot record compiled functions, nor torch.cond, which "
        "compiles: capture the original function, and use tensorplay_torch.cond",
    )
    HostReads.__torch_function__ = seen  # type: ignore[method-assign]


def _leaves_fast_path(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True if only the presence of a function mode keeps the caller from the fast path."""
    if kwargs.get("training", True) or not torch.backends.mha.get_fastpath_enabled():
        return False
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    reasons = [
        frame.f_locals["why_not_fast_path"]
        for frame in frames()
        if frame.f_code.co_name == "forward" and "why_not_fast_path" in frame.f_locals
    ]
    return not reasons or "has_torch_function" in reasons[0]


def _holds_tensor(data: Any) -> bool:
    return (
        isinstance(data, Sequence)
        and not isinstance(data, NUMBERS)
        and any(isinstance(one, Tensor) or _holds_tensor(one) for one in data)
    )


def _pickled() -> bool:
    """True if the caller takes a tensor apart to pickle it, and not to copy it with its memory."""
    for frame in frames():
        if frame.f_code in PICKLERS:
            break
    else:
        return False
    while frame.f_code in PICKLERS or frame.f_code is Tensor.__reduce_ex__.__code__:
        if frame.f_back is None:
            return True
        frame = frame.f_back
    return frame.f_code is not copy.copy.__code__


def _refuse_compiled(outputs: Any) -> None:
    """Refuses a backward pass through what torch.compile compiled before the capture."""
    tensors = (outputs,) if isinstance(outputs, Tensor) else outputs
    pending = [t.grad_fn for t in tensors if isinstance(t, Tensor) and t.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if node.name() == COMPILED_BACKWARD:
            raise refused("a compiled backward pass", Reason.COMPILED)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                pending.append(parent)


def _beneath_overrides(function: Any) -> Any:
    """``function`` as it is when no mode is on, for calls from a mode that stays on inside it."""
    code: types.CodeType = function.__code__
    checks = [name for name in code.co_names if name.startswith("has_torch_function")]
    names = {**function.__globals__, **dict.fromkeys(checks, lambda *_: False)}
    copy = types.FunctionType(
        code, names, code.co_name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


DIFFERENTIATE = {
    function: _beneath_overrides(function)
    for function in (Tensor.backward, torch.autograd.backward, torch.autograd.grad)
}
"""They run hooks and functions of the user's."""
