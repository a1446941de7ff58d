"""The form of one batch: what inputs and targets were at the capture, and must be again."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import torch

from tensorplay_core.errors import ArgumentError, SignatureMismatch
from tensorplay_core.signature import a_type
from tensorplay_torch.compiled import parts
from tensorplay_torch.resources.arrays import like
from tensorplay_torch.resources.signatures import compare
from tensorplay_torch.structure import structure_of
from tensorplay_torch.tracking.fixed import is_constant, same

__all__ = ["Batch"]

SUBJECT = "a captured step"


class Batch:
    """Inputs and targets, nested as they like: tensors are fresh at each call, all else is fixed.

    Args:
        inputs: Tensors of the device, None and other constants, in tuples, lists, dicts and
            dataclasses.
        targets: The same.

    Attributes:
        tensors: Them, in order.
        static_inputs: ``inputs`` as built around ``tensors``.
        static_targets: ``targets`` likewise.
    """

    def __init__(self, inputs: Any, targets: Any) -> None:
        leaves: list[Any] = []
        self._inputs = structure_of(inputs, leaves)
        self._targets = structure_of(targets, leaves)
        self._paths = [*self._inputs.paths("inputs"), *self._targets.paths("targets")]
        self._leaves = leaves
        self._places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._constants = [
            (n, leaf) for n, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)
        ]
        self._pick = itemgetter(*self._places) if len(self._places) > 1 else None
        self._plain = isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor)
        # The compiled check tells nested tensors by itself.
        self._told = parts() is not None
        self.tensors: list[torch.Tensor] = [leaves[n] for n in self._places]
        self._put(self.tensors)

    def check_any(self) -> None:
        """Raises ArgumentError if there is no tensor at all."""
        if not self._places:
            raise _unfit("the batch", "it holds no tensor", "Pass at least one tensor.")

    def owned(self, device: torch.device) -> Batch:
        """The same form around new memory, holding the same values.

        Raises:
            ArgumentError: A tensor is on another device, has gaps between its elements or requires
                grad; a value is neither tensor nor constant; or there is no tensor at all.
        """
        self.check_any()
        for place, constant in self._constants:
            if not is_constant(constant):
                raise _unfit(
                    self._paths[place],
                    f"it is {a_type(constant)}, which may change without a graph noticing",
                    "Pass tensors, numbers, strings and None, in tuples, lists, dicts and "
                    "dataclasses.",
                )
        made = []
        for place, tensor in zip(self._places, self.tensors, strict=True):
            made.append(_owned(tensor, self._paths[place], device))
        other = Batch(self.static_inputs, self.static_targets)
        other._put(made)
        return other

    def copy(self) -> tuple[Any, Any]:
        """Inputs and targets of this form in new memory, holding the same values."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, self.tensors, strict=True):
            leaves[place] = tensor.detach().clone()
        remaining = iter(leaves)
        return self._inputs.build(remaining), self._targets.build(remaining)

    def _put(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        for place, tensor in zip(self._places, tensors, strict=True):
            self._leaves[place] = tensor
        leaves = iter(self._leaves)
        self.static_inputs = self._inputs.build(leaves)
        self.static_targets = self._targets.build(leaves)

    def take(self, inputs: Any, targets: Any) -> tuple[Any, ...]:
        """The tensors of another batch of this form, in order; staging compares them.

        Raises:
            SignatureMismatch: It is built otherwise, or a constant differs.
        """
        if self._plain:
            if self._told:
                return inputs, targets
            if _is_nested(inputs) or _is_nested(targets):
                raise self.mismatch(inputs, targets)
            return inputs, targets
        leaves: list[Any] = []
        if not (self._inputs.take(inputs, leaves) and self._targets.take(targets, leaves)):
            raise self.mismatch(inputs, targets)
        for place, constant in self._constants:
            given = leaves[place]
            if given is not constant and not same(constant, given):
                raise self.mismatch(inputs, targets)
        if any(_is_nested(leaves[place]) for place in self._places):
            raise self.mismatch(inputs, targets)
        if self._pick is None:
            return (leaves[self._places[0]],)
        picked: tuple[Any, ...] = self._pick(leaves)
        return picked

    def mismatch(self, inputs: Any, targets: Any) -> SignatureMismatch:
        """The error that lists every difference of another batch, by path."""
        return SignatureMismatch(
            differences=self._differences(inputs, targets),
            subject=SUBJECT,
            remedy="Pass batches like the one captured (inputs.contiguous(), a full last batch), "
            "or capture a step for these.",
        )

    def _differences(self, inputs: Any, targets: Any) -> Iterator[str]:
        leaves: list[Any] = []
        for name, value, captured in (
            ("inputs", inputs, self._inputs),
            ("targets", targets, self._targets),
        ):
            yield from captured.differences(value, name)
        paths = [
            path
            for name, value in (("inputs", inputs), ("targets", targets))
            for path in structure_of(value, leaves).paths(name)
        ]
        given = dict(zip(paths, leaves, strict=True))
        for path, was in zip(self._paths, self._leaves, strict=True):
            if path not in given:
                continue
            now = given[path]
            if _is_nested(now):
                yield f"{path}: captured plain dense memory, got a nested tensor"
            elif isinstance(was, torch.Tensor):
                yield from compare(was, now, path)
            elif not same(was, now):
                said = repr(now) if is_constant(now) else a_type(now)
                yield f"{path}: captured {was!r}, got {said}"


def _is_nested(value: Any) -> bool:
    # To look at its sizes, as a fast comparison does, ends the process.
    return getattr(value, "is_nested", False) is True


def _owned(tensor: torch.Tensor, path: str, device: torch.device) -> torch.Tensor:
    if tensor.device != device:
        raise _unfit(
            path,
            f"it is on {tensor.device}, the module on {device}",
            f"Move it: {path}.to({str(device)!r}).",
        )
    if tensor.requires_grad:
        raise _unfit(
            path,
            "it requires grad, and a step returns no gradient of its batch",
            "Pass tensor.detach(); to differentiate by it, call requires_grad_() on a copy inside "
            "the module.",
        )
    plain = tensor.layout is torch.strided and not tensor.is_nested
    made = like(tensor) if plain else tensor
    if made is tensor or (met := compare(made, tensor, path)):
        layout = "nested" if tensor.is_nested else tensor.layout
        raise _unfit(
            path,
            f"it is not plain dense memory ({layout if made is tensor else met[0]})",
            "Pass tensor.contiguous() (of a sparse tensor, to_dense(); of a nested one, "
            "to_padded_tensor(0.0)), here and at each call.",
        )
    with torch.no_grad():
        made.copy_(tensor)
    return made


def _unfit(subject: str, met: str, remedy: str) -> ArgumentError:
    return ArgumentError(doing="capturing a step for", subject=subject, met=met, remedy=remedy)
