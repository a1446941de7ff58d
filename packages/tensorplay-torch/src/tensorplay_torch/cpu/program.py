"""From a recorded operation to the callable that a replay runs, with everything bound beforehand.

Where the operation can write into memory that it is given, and torch has a CPU kernel for that, it
does; otherwise its result is copied. It is called by the cheapest name that is seen to dispatch to
the very same operator with the very same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorplay_core.errors import ReplayError
from tensorplay_torch._private import NAMESPACES, PRIVATE
from tensorplay_torch.tracking.culprit import name_of
from tensorplay_torch.tracking.modes import DISPATCH
from tensorplay_torch.tracking.operations import Operation

from .metadata import layout_of

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["Work", "minds_grad_mode", "node_kind", "work_of"]

Work = Callable[[], object]

COPIES = frozenset({"aten._to_copy", "aten.clone"})
ZEROS = frozenset({"aten.new_zeros", "aten.zeros", "aten.zeros_like"})
ONES = frozenset({"aten.new_ones", "aten.ones", "aten.ones_like"})
FILLS = {
    "aten.full": 1,
    "aten.full_like": 1,
    "aten.new_full": 2,
    "aten.scalar_tensor": 0,
}
"""Which argument is the number."""
MEMSETS = frozenset({"aten.fill_.Scalar", "aten.full", "aten.ones", "aten.zero_", "aten.zeros"})
_NAMES = """
_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data acos add addcdiv addcmul
addmm all amax amin any argmax argmin asin atan atan2 avg_pool2d avg_pool2d_backward baddbmm
bitwise_and bitwise_not bitwise_or bitwise_xor bmm cat ceil clamp clamp_max clamp_min cos cosh
cumsum div elu elu_backward eq erf exp exp2 expm1 floor fmod gather ge gelu gelu_backward glu gt
hardsigmoid hardsigmoid_backward index_add le leaky_relu leaky_relu_backward lerp
linalg_vector_norm log log10 log1p log2 lt max max_pool2d_with_indices maximum mean min minimum
mish mm mul ne neg nll_loss_backward nll_loss_forward pow prod reciprocal remainder round rsqrt
scatter scatter_add sgn sigmoid sigmoid_backward sign silu silu_backward sin sinh softplus
softplus_backward sqrt sub sum tan tanh tanh_backward threshold threshold_backward topk tril
triu trunc upsample_bilinear2d upsample_nearest2d where xlogy
"""
IN_PLACE = frozenset(_NAMES.split())
"""Operations whose kernel is one and the same with and without ``out=``.

Others may have one that resizes what it is given, or leaves parts of it unfilled.
"""

_has_kernel = PRIVATE["has_kernel"].value


def work_of(
    operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], results: Any
) -> Work:
    """What a replay calls.

    Args:
        operation: What was recorded.
        args: Its arguments, each tensor an alias that belongs to the program.
        kwargs: The same.
        results: Aliases of the tensors to fill, in place of what the operation returns; None if it
            returns its own arguments or nothing.
    """
    if results is None:
        return partial(_callee(operation.func, args, kwargs), *args, **kwargs)
    name = operation.name
    if isinstance(results, torch.Tensor):
        if name in COPIES:
            return partial(results.copy_, args[0])
        if name in ZEROS:
            return results.zero_
        if name in ONES:
            return partial(results.fill_, 1)
        if name in FILLS and len(args) > FILLS[name]:
            return partial(results.fill_, args[FILLS[name]])
        if name == "aten.relu":  # That is how torch computes it, and clamp_min takes an out.
            return partial(torch.clamp_min, args[0], 0, out=results)
    into = _writing_variant(operation.func)
    outputs = results if isinstance(results, tuple) else (results,)
    if into is not None and all(isinstance(one, torch.Tensor) for one in outputs):
        keywords = {**kwargs, **dict(zip(into[1], outputs, strict=True))}
        return partial(_callee(into[0], args, keywords), *args, **keywords)
    call = partial(_callee(operation.func, args, kwargs), *args, **kwargs)
    return _copying(operation.func, call, results)


def minds_grad_mode(operation: Operation) -> bool:
    """True if the operation's kernel may look whether grad mode is on."""
    name = operation.func._schema.name.removeprefix("aten::")
    return not (
        name.rstrip("_") in IN_PLACE
        or operation.name in COPIES | ZEROS | ONES
        or operation.name in FILLS
        or operation.listed
        or name in {"copy_", "fill_", "relu", "zero_"}
    )


def node_kind(name: str) -> str:
    """What pictures call the node of an operation of that name."""
    if name in COPIES or name == "aten.copy_":
        return "memcpy"
    return "memset" if name in MEMSETS else "kernel"


def _copying(func: OpOverload, call: Work, results: Any) -> Work:
    """Runs ``call`` and copies what it returns, once that is seen to be what was expected."""
    if isinstance(results, torch.Tensor):
        size, stride, dtype, copy = results.size(), results.stride(), results.dtype, results.copy_

        def copy_result() -> None:
            made: Any = call()
            if made.size() != size or made.stride() != stride or made.dtype is not dtype:
                _accept(func, results, made)
            copy(made)

        return copy_result
    expected = _leaves(results)

    def copy_results() -> None:
        for target, made in zip(expected, _leaves(call()), strict=True):
            if target is not None or made is not None:
                _accept(func, target, made)
                target.copy_(made)

    return copy_results


def _leaves(results: Any) -> list[Any]:
    if isinstance(results, list | tuple):
        return [leaf for one in results for leaf in _leaves(one)]
    return [results if isinstance(results, torch.Tensor) else None]


def _accept(func: OpOverload, expected: Any, made: Any) -> None:
    """Refuses a result of another layout; steps over one element or none do not matter."""
    if expected is None or made is None:
        raise _unforeseen(func, expected, made)
    if expected.dtype is not made.dtype or expected.size() != made.size():
        raise _unforeseen(func, expected, made)
    steps = zip(made.size(), made.stride(), expected.stride(), strict=True)
    if made.numel() and any(length > 1 and ours != theirs for length, ours, theirs in steps):
        raise _unforeseen(func, expected, made)


def _unforeseen(func: OpOverload, expected: Any, made: Any) -> ReplayError:
    def said(value: Any) -> str:
        return str(layout_of(value)) if isinstance(value, torch.Tensor) else "no tensor"

    return ReplayError(
        doing="replaying",
        subject=name_of(func),
        met=f"its result is {said(made)}, and at the capture it was taken to be {said(expected)}",
        remedy="If it is your own operation, correct what torch.library.register_fake says of it "
        "for these arguments. If it is torch's, report it with the arguments; calling "
        ".contiguous() on them avoids it.",
    )


@cache
def _writing_variant(func: OpOverload) -> tuple[OpOverload, tuple[str, ...]] | None:
    """The overload that writes into given memory, and its names for that."""
    name = func._schema.name
    if _has_kernel is None or name.removeprefix("aten::") not in IN_PLACE:
        return None
    wanted = _signature(func)
    packet = func.overloadpacket
    for overload in (getattr(packet, one) for one in packet.overloads()):
        outputs = [one.name for one in overload._schema.arguments if one.is_out]
        if (
            len(outputs) == len(func._schema.returns)
            and _signature(overload) == wanted
            and _has_kernel(overload.name(), "CPU")
        ):
            return overload, tuple(outputs)
    return None


def _signature(func: OpOverload) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in func._schema.arguments if not one.is_out]


def _callee(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """The cheapest callable that calls ``func`` with these arguments."""
    for candidate in _names(func):
        if _dispatches_to(candidate, func, args, kwargs):
            return candidate
    return getattr(func, "_op", func)


def _names(func: OpOverload) -> tuple[Callable[..., Any], ...]:
    if func.namespace != "aten":
        return ()
    return _bindings(func._schema.name.removeprefix("aten::"))


@cache
def _bindings(name: str) -> tuple[Callable[..., Any], ...]:
    """What Python calls the operator: a method for one that writes to its first argument."""
    homes = (torch.Tensor, *NAMESPACES) if name.endswith("_") else NAMESPACES
    found = (getattr(home, name, None) for home in homes)
    return tuple(one for one in found if callable(one))


class _Seen(Exception):
    pass


class _Spy(TorchDispatchMode):
    """Stops at the first operator and keeps what was called."""

    fleeting = True
    depth: int | None = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.call: tuple[Any, Sequence[Any], Mapping[str, Any]] | None = None
        self.done = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self.done:
            # Left on by an interrupt, until the capture ends.
            return func(*args, **(kwargs or {}))
        self.call = (func, args, kwargs or {})
        raise _Seen


def _dispatches_to(
    candidate: Callable[..., Any], func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    spy = _Spy()
    try:
        DISPATCH.enter(spy)
        candidate(*args, **kwargs)
    except (_Seen, TypeError, RuntimeError):
        pass
    finally:
        spy.done = True
        DISPATCH.leave(spy)
    if spy.call is None or spy.call[0] is not func:
        return False
    return _same(_named(func, args, kwargs), _named(func, *spy.call[1:]))


def _named(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every argument by its name, defaults included."""
    arguments = func._schema.arguments
    named = {one.name: one.default_value for one in arguments}
    named.update(zip(named, args, strict=False))
    named.update(kwargs)
    return named


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return (
            isinstance(other, list | tuple)
            and len(one) == len(other)
            and all(map(_same, one, other))
        )
    return type(one) is type(other) and (one == other or one != one)
