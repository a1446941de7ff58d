"""Tensors as core sees arrays: made alike, copied without broadcasting, compared by memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any

import torch

from tensorplay_core.errors import ArgumentError, ArgumentTypeError, OperationRefused
from tensorplay_core.signature import a_type, named
from tensorplay_torch._private import PRIVATE

from .devices import index_of

__all__ = ["copy_into", "empties", "extent", "like", "overlap", "unlike_memory"]


def like(array: torch.Tensor) -> torch.Tensor:
    """A new tensor of the same shape, dtype, device and (dense) strides, contents undefined.

    Raises:
        ArgumentTypeError: ``array`` is no tensor, or none of plain memory.
    """
    _tensor(array)
    _plain(array)
    with torch.no_grad():
        return torch.empty_like(array, requires_grad=False)


def empties(
    tensors: Sequence[torch.Tensor], device: torch.device
) -> Callable[[], tuple[torch.Tensor, ...]] | None:
    """What makes new tensors like dense ones of a GPU, contents undefined; None if nothing faster.

    ``torch.empty_like`` spends most of its 3 µs on finding out what is known here.
    """
    make = PRIVATE["empty_strided_cuda"].value
    if make is None:
        return None
    forms = [(tuple(one.shape), one.stride(), one.dtype) for one in tensors]
    if len(forms) == 1:
        ((shape, strides, dtype),) = forms

        def fresh() -> tuple[torch.Tensor, ...]:
            return (make(shape, strides, dtype),)
    else:

        def fresh() -> tuple[torch.Tensor, ...]:
            return tuple(starmap(make, forms))

    if torch.cuda.device_count() == 1:
        return fresh
    index, current = index_of(device), torch.cuda.current_device

    def there() -> tuple[torch.Tensor, ...]:
        # It allocates on the current device.
        return fresh() if current() == index else tuple(map(torch.empty_like, tensors))

    return there


def copy_into(destination: torch.Tensor, source: Any) -> None:
    """``destination.copy_(source)`` for equal shapes, without a trace in autograd.

    Args:
        destination: The tensor to write.
        source: A tensor, or an array of another library that torch can view.

    Raises:
        ArgumentTypeError: One is no array, or a tensor but not of plain memory.
        ArgumentError: The shapes differ: nothing is broadcast.
        OperationRefused: Autograd would have to follow the copy. The values that a conditional
            node yields come from whichever body ran, which a captured backward cannot know.
    """
    _tensor(destination)
    given = source if isinstance(source, torch.Tensor) else _viewed(source)
    _plain(destination)
    _plain(given)
    if destination.shape != given.shape:
        raise ArgumentError(
            doing="copying",
            subject=f"an array of shape {tuple(given.shape)}",
            met=f"the destination's shape is {tuple(destination.shape)}",
            remedy="Pass arrays of equal shape: nothing is broadcast.",
        )
    if torch.is_grad_enabled() and (given.requires_grad or destination.requires_grad):
        raise OperationRefused(
            operation="copy",
            met="a tensor that requires grad is carried through a conditional or a loop, and "
            "gradients cannot follow it there",
            remedy="Carry tensor.detach(), or work under torch.no_grad(); a whole step with its "
            "backward may stand inside one body.",
        )
    with torch.no_grad():
        destination.copy_(given)
    if given.is_cuda and not torch.cuda.is_current_stream_capturing():
        # Its owner may let it go before this stream has read it.
        given.record_stream(torch.cuda.current_stream(given.device))


def overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """True if the two may share memory: their first and last bytes enclose a common one."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    if unlike_memory(first) or unlike_memory(second):
        return False
    if first.device != second.device or not first.numel() or not second.numel():
        return False
    (start, end), (begin, stop) = extent(first), extent(second)
    return start < stop and begin < end


def unlike_memory(tensor: torch.Tensor) -> str:
    """What a tensor is that is not plain strided memory with values, or ``""``."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return str(tensor.layout)
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_meta:
        return "on the meta device, where there are no values"
    # Autograd makes such ones, where a derivative is known to be zero.
    return "zeros without memory" if tensor._is_zerotensor() else ""


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first byte of a tensor that has elements, and of the one after its last."""
    # By the storage, since a recorder may watch Tensor.data_ptr.
    size = tensor.element_size()
    start = tensor.untyped_storage().data_ptr() + int(tensor.storage_offset()) * size
    last = sum(
        (extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + (last + 1) * size


def _viewed(array: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_array(array) from error


def _tensor(value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise _no_array(value)


def _plain(tensor: torch.Tensor) -> None:
    met = unlike_memory(tensor)
    if met:
        raise ArgumentTypeError(
            doing="copying",
            subject="a tensor",
            met=f"it is {met}",
            remedy="Pass a tensor of plain strided memory: x.to_dense(), x.dequantize(), "
            "x.to_padded_tensor(...), x.clone() of zeros.",
        )


def _no_array(value: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        doing="reading",
        subject=named(value),
        met=f"it is {a_type(value)}",
        remedy="Pass a torch.Tensor (to copy from, any array that torch.as_tensor takes).",
    )
