"""What a captured callable returned, and how each call's result is made of what the graph computed.

A tensor that the graph computed comes back as a copy (or an alias). An input, a parameter, a buffer
or a module that is handed back as it is comes back as itself, and so do constants. Of other objects
eager makes a new one in each call, and a replay runs no Python: they are refused.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tensorplay_core.errors import CaptureError
from tensorplay_torch.resources.storages import key_of
from tensorplay_torch.structure import structure_of
from tensorplay_torch.tracking.fixed import is_constant

from .eligibility import plain_tensor

__all__ = ["Outputs", "dense", "is_dense"]


class Outputs:
    """The form of a result. Made inside the capture, since results with gaps are made dense there.

    Args:
        value: What the callable returned.
        inputs: The graph's input buffers, as the callable was given them.
        known: Objects to hand back for tensors that the callable was not to copy, by identity.
        device: Where the graph runs.
        subject: What errors call the callable.

    Attributes:
        computed: The tensors that the graph computed, each once, as the callable returned them.
        differentiable: Which of them have a history.
        buffers: The same without history, dense: what each call copies.
        rewritten: Those of them that each replay writes: all but views of parameters and buffers.
        build: ``build(inputs, results)`` makes the result of a call.

    Raises:
        CaptureError: A tensor in it is on another device or no plain tensor; or it holds an object
            that is neither container nor constant.
    """

    build: Callable[[Sequence[Any], Sequence[Any]], Any]

    def __init__(
        self,
        value: Any,
        inputs: Sequence[torch.Tensor],
        known: Mapping[int, Any],
        *,
        device: torch.device,
        subject: str,
    ) -> None:
        leaves: list[Any] = []
        structure = structure_of(value, leaves)
        for path, key in structure.names("output"):
            _refuse_object(key, f"a key of {path}", subject)
        places = {id(tensor): place for place, tensor in enumerate(inputs)}
        self.computed: list[torch.Tensor] = []
        numbers: dict[int, int] = {}
        recipe: list[tuple[str, Any]] = []
        for leaf, path in zip(leaves, structure.paths("output"), strict=True):
            if id(leaf) in places:
                recipe.append(("input", places[id(leaf)]))
            elif id(leaf) in known:
                recipe.append(("constant", known[id(leaf)]))
            elif not isinstance(leaf, torch.Tensor):
                _refuse_object(leaf, path, subject)
                recipe.append(("constant", leaf))
            else:
                _refuse_unlike(leaf, path, device, subject)
                if id(leaf) not in numbers:
                    numbers[id(leaf)] = len(self.computed)
                    self.computed.append(leaf)
                recipe.append(("result", numbers[id(leaf)]))
        self.differentiable = [n for n, one in enumerate(self.computed) if one.requires_grad]
        self.buffers = [dense(tensor.detach()) for tensor in self.computed]
        lent = {key_of(one) for one in known.values() if isinstance(one, torch.Tensor)}
        self.rewritten = [one for one in self.buffers if key_of(one) not in lent]
        self.build = _builder(structure, recipe, type(value))


def _builder(
    structure: Any, recipe: list[tuple[str, Any]], kind: type
) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    results = [("result", number) for number in range(len(recipe))]
    if recipe == results:
        if len(recipe) == 1 and kind is torch.Tensor:
            return lambda inputs, owned: owned[0]
        if kind is tuple and structure.flat:
            return lambda inputs, owned: tuple(owned)

    def build(inputs: Sequence[Any], owned: Sequence[Any]) -> Any:
        sources = {"input": inputs, "result": owned}
        return structure.build(
            iter([one if kind == "constant" else sources[kind][one] for kind, one in recipe])
        )

    return build


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy without gaps, overlaps or lazy bits: what a copy of bytes can move."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if is_dense(tensor) else tensor.contiguous()


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the tensor's elements fill its memory once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return not tensor.numel()
        expected *= size
    return True


def _refuse_object(value: Any, path: str, subject: str) -> None:
    """Refuses what each call of the callable itself would make anew, or fill anew."""
    if isinstance(value, types.FunctionType):
        kept = inspect.getclosurevars(value).nonlocals.values()
        fit = all(is_constant(one) and not isinstance(one, types.FunctionType) for one in kept)
    else:
        fit = is_constant(value) or (isinstance(value, tuple) and all(map(is_constant, value)))
    if not fit:
        kind = type(value)
        raise CaptureError(
            doing="graphing",
            subject=subject,
            met=f"{path} is a {kind.__module__}.{kind.__qualname__}, which each call makes anew, "
            "and a replay runs no Python",
            remedy="Return its tensors, in tuples, lists, dicts or dataclasses, and build it of "
            "them outside; or register its class with torch.utils._pytree.register_pytree_node.",
        )


def _refuse_unlike(tensor: torch.Tensor, path: str, device: torch.device, subject: str) -> None:
    met = plain_tensor(tensor)
    if met is None and tensor.device != device:
        met = f"is on {tensor.device}, the graph on {device}"
    # Without grad mode a view of a leaf says that it is one as well.
    if met is None and tensor.is_leaf and tensor.requires_grad and torch.is_grad_enabled():
        met = "is a leaf of autograd that the callable makes anew in each call"
    if met is not None:
        raise CaptureError(
            doing="graphing",
            subject=subject,
            met=f"{path} {met}",
            remedy=f"Return plain dense tensors on {device}, computed from the inputs.",
        )
