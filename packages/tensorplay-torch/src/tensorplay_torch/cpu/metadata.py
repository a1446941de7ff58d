"""Shape, strides and dtype of what an operation will return, without running it on real values.

They come from the operation's meta kernel where that is known to be right, and otherwise from a run
on stand-ins: tensors of the same layout whose values mean nothing. Meta kernels written in Python
are only trusted with tensors in plain row-major order and full precision: with others, or for the
operations in ``MEASURED`` always, they differ from what the CPU kernels return.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tensorplay_torch.resources.storages import key_of
from tensorplay_torch.tracking.operations import Kind, Operation, tensors_in

from .measuring import drawing_elsewhere
from .standins import OverlappingStandIns, StandIns, flagged_as
from .switches import settings

__all__ = ["NOT_PLAIN", "Layout", "NoMetaKernel", "layout_of", "results_of"]

MEASURED = frozenset(
    {
        "aten._embedding_bag",
        "aten._embedding_bag_forward_only",
        "aten._fft_c2r",
        "aten._fft_r2c",
        "aten._linalg_svd",
        "aten._native_batch_norm_legit",
        "aten._native_batch_norm_legit.no_stats",
        "aten.col2im",
        "aten.fractional_max_pool3d_backward",
        "aten.geqrf",
        "aten.linalg_eig",
        "aten.linalg_solve_triangular",
        "aten.mkldnn_rnn_layer",
        "aten.mkldnn_rnn_layer_backward",
        "aten.multi_margin_loss_backward",
        "aten.multilabel_margin_loss_backward",
        "aten.native_batch_norm",
        "aten.nonzero_static",
        "aten.quantize_per_tensor",
        "aten.quantize_per_tensor.tensor_qparams",
        "aten.quantize_per_tensor.tensors",
    }
)
"""Their meta kernels are missing, or differ from the CPU's even with tensors in row-major order."""

TRUSTED = frozenset(
    {
        "aten._segment_reduce_backward",
        "aten.addmm",
        "aten.copy_",
        "aten.addmv",
        "aten.baddbmm",
        "aten.bmm",
        "aten.dot",
        "aten.mm",
        "aten.mv",
        "aten.segment_reduce",
    }
)
"""Never run: what these return does not hang on the layout of what they are given. A run would cost
a product of matrices, or fail for lengths that mean nothing."""


class NoMetaKernel(Exception):
    """An operation has no meta kernel, and running it on stand-ins would not do."""


HALVES = (torch.bfloat16, torch.float16)
"""With these the CPU keeps statistics in the same type, CUDA and so meta kernels in float32."""

QUANTIZED = frozenset({torch.qint8, torch.qint32, torch.quint2x4, torch.quint4x2, torch.quint8})
NOT_PLAIN = object()
"""Stands for a result that is not plain strided memory."""

REMEMBERED = 4096
LARGE = 1 << 26
"""Bytes of a storage of which no second one is made to see whether a call is right."""

_lock = threading.Lock()
_remembered: OrderedDict[Any, Any] = OrderedDict()


class Layout(NamedTuple):
    """What a tensor is, but for its values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def row_major(self) -> bool:
        """True if it holds something, in plain order without gaps."""
        expected = 1
        for length, step in zip(reversed(self.size), reversed(self.stride), strict=True):
            if length == 0 or step != expected:
                return False
            expected *= length
        return True


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of ``tensor``."""
    return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def results_of(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call will return, with a ``Layout`` or ``NOT_PLAIN`` in place of each tensor.

    For an operation that returns its arguments these are their layouts after the call, which
    differ from those before it where an ``out=`` has to grow.

    Raises:
        NoMetaKernel: There is no telling.
        Exception: Whatever torch raises for these arguments.
    """
    overlap = _overlap(operation, args, kwargs)
    key = (
        operation.func,
        _frozen(args),
        _frozen(tuple(sorted(kwargs.items()))),
        overlap,
        torch.is_grad_enabled(),
        settings(),
    )
    with _lock:
        if key in _remembered:
            _remembered.move_to_end(key)
            return _remembered[key]
    if overlap:
        results = _measured(operation, args, kwargs, OverlappingStandIns)
    else:
        results = _find(operation, args, kwargs)
    with _lock:
        _remembered[key] = results
        if len(_remembered) > REMEMBERED:
            _remembered.popitem(last=False)
    return results


def _overlap(
    operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[int, int], ...]:
    """How arguments share memory with what is written, which kernels may refuse; mostly ``()``.

    For each tensor the number of its storage and its offset in it.
    """
    if operation.kind is not Kind.WRITE or operation.listed:
        return ()
    tensors = {id(one): one for one in (*tensors_in(args), *tensors_in(kwargs.values()))}
    storages = [key_of(one) for one in tensors.values()]
    if len(set(storages)) == len(storages):
        return ()
    if any(one.untyped_storage().nbytes() > LARGE for one in tensors.values()):
        return ()
    return tuple(
        (storages.index(key), int(one.storage_offset()))
        for key, one in zip(storages, tensors.values(), strict=True)
    )


def _find(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if operation.func.namespace != "aten":
        return _by_meta_kernel(operation, args, kwargs)
    if not _needs_run(operation, args, kwargs):
        try:
            return _by_meta_kernel(operation, args, kwargs)
        except Exception:
            # Either the call is wrong, which the CPU kernel says in the words of eager code, or
            # the meta kernel is.
            return _measured(operation, args, kwargs)
    return _measured(operation, args, kwargs)


def _by_meta_kernel(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return _called(operation.func, args, _on_meta(operation, kwargs), _meta)
    except NotImplementedError as error:
        raise NoMetaKernel from error
    except RuntimeError as error:
        # So says torch.library of an operation defined in Python.
        if "no fake impl registered" in str(error):
            raise NoMetaKernel from error
        raise


def _needs_run(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if operation.name in MEASURED or _leaves_out_results(operation, args):
        return True
    if operation.name in TRUSTED or not operation.python_meta:
        return False
    tensors = (*tensors_in(args), *tensors_in(kwargs.values()))
    if operation.kind is Kind.WRITE:
        dtypes = {one.dtype for one in tensors}
        # Meta kernels do not say whether the result may be cast to what is written.
        if len(dtypes) > 1 or not all(one.is_floating_point for one in dtypes):
            return True
    return not all(_is_plain(one) for one in tensors)


def _leaves_out_results(operation: Operation, args: Sequence[Any]) -> bool:
    """True if not all results are asked for: meta kernels make some of the others all the same."""
    for argument, value in zip(operation.func._schema.arguments, args, strict=False):
        if argument.name == "output_mask":
            return not all(value)
    return False


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        layout_of(tensor).row_major
        and tensor.dtype not in HALVES
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _measured(
    operation: Operation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    stand_ins: type[StandIns] = StandIns,
) -> Any:
    func: Callable[..., Any] | None = operation.func
    if operation.seeded:
        func = drawing_elsewhere(operation.func, args, kwargs)
    if func is None:
        raise NoMetaKernel
    try:
        return _called(func, args, kwargs, stand_ins(0))
    except RuntimeError:
        # Where 0 is no possible value, as for a pivot, 1 is.
        return _called(func, args, kwargs, stand_ins(1))


def _called(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    replace: Callable[[torch.Tensor], torch.Tensor],
) -> Any:
    made = {}

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            # The same tensor twice stays the same tensor twice.
            if id(value) not in made:
                made[id(value)] = replace(value)
            return made[id(value)]
        if isinstance(value, list | tuple):
            return type(value)(replaced(one) for one in value)
        return torch.Generator() if isinstance(value, torch.Generator) else value

    keywords = {name: replaced(value) for name, value in kwargs.items()}
    if replace is _meta and "generator" in keywords:
        keywords["generator"] = None
    return _layouts(func(*(replaced(value) for value in args), **keywords))


def _on_meta(operation: Operation, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    keywords = dict(kwargs)
    if operation.placed:
        keywords["device"] = torch.device("meta")
    if keywords.get("pin_memory"):
        keywords["pin_memory"] = False
    return keywords


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    return flagged_as(tensor, made)


def _layouts(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        if result.is_nested or result.layout != torch.strided or result.dtype in QUANTIZED:
            return NOT_PLAIN
        return layout_of(result)
    if isinstance(result, list | tuple):
        return [_layouts(one) for one in result]
    return result


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (layout_of(value), value.is_conj(), value.is_neg())
    if isinstance(value, list | tuple):
        return tuple(_frozen(one) for one in value)
    if isinstance(value, torch.Generator):
        return torch.Generator
    # 1, 1.0 and True are equal, and promote differently.
    return (type(value), value)
