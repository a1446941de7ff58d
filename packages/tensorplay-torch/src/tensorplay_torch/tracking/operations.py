"""What an operation does to its tensors, read once from its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import torch
from torch import Tag

from tensorplay_torch._private import META_KEY, PRIVATE

from .culprit import name_of
from .refusals import Reason

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["Kind", "Operation", "describe", "described", "tensors_in", "value_reason"]


class Kind(Enum):
    """How a capture treats an operation."""

    VIEW = auto()
    """Returns other shapes over the same memory."""
    METADATA = auto()
    """Gives another shape or other memory to its own argument."""
    WRITE = auto()
    """Changes arguments and returns nothing but them."""
    FRESH = auto()
    """Returns new tensors, whatever else it changes."""
    EMPTY = auto()
    """Returns memory whose contents are undefined."""
    EFFECT = auto()
    """Returns nothing and changes no tensor: a check."""
    QUERY = auto()
    """Returns Python values and no tensor."""
    UNRECORDED = auto()
    """Tells a profiler something."""


# Schemas call these results new; they are views.
UNSAFE_VIEWS = frozenset(
    {
        "aten::_unsafe_view",
        "aten::unsafe_split.Tensor",
        "aten::unsafe_split_with_sizes",
        "aten::lift",
        "aten::lift_fresh",
    }
)
EMPTIES = frozenset(
    {
        "aten::empty.memory_format",
        "aten::empty_like",
        "aten::empty_permuted",
        "aten::empty_strided",
        "aten::new_empty",
        "aten::new_empty_strided",
    }
)
# Schemas do not say that these write running statistics.
HIDDEN_WRITES: Mapping[str, tuple[int, ...]] = {
    "aten::native_batch_norm": (3, 4),
    "aten::cudnn_batch_norm": (3, 4),
    "aten::miopen_batch_norm": (3, 4),
}
has_kernel = PRIVATE["has_kernel"].value
INDEXING = frozenset(
    {
        "aten.index.Tensor",
        "aten._unsafe_index.Tensor",
        "aten.index_put",
        "aten.index_put_",
        "aten._index_put_impl_",
        "aten._unsafe_index_put",
    }
)
NODELESS = (Kind.VIEW, Kind.EMPTY, Kind.METADATA, Kind.QUERY)
MASK_DTYPES = (torch.bool, torch.uint8)
TAGGED = frozenset({"aten", "prim", "prims", "profiler", "_c10d_functional", "c10d"})
"""Namespaces of torch's own, whose operations are tagged if they draw random numbers."""
UNPLAIN = frozenset({"aten._to_copy", "aten.lift_fresh"})
"""These may wait for a copy from the host, and hold memory that no operation fills."""
ERROR_CHECKS = frozenset({"aten._linalg_check_errors", "aten.cholesky"})
# detach_ changes how autograd sees a tensor, not its memory or shape.
HARMLESS_METADATA = frozenset({"aten::detach_"})


class Operation:
    """One operator overload.

    Attributes:
        func: The overload.
        name: What errors call it.
        kind: How a capture treats it.
        seeded: It may draw random numbers.
        valued: The host has to wait for values to know what it returns.
        indexes: It takes indices, which may be masks.
        composite: It is made of other operations on the CPU, which take its place.
        listed: It works on lists of tensors, one after the other.
        placed: It takes a device.
        python_meta: Its meta kernel is written in Python.
        writes: It changes arguments.
        plain: Neither does it write, wait or draw random numbers, nor may it copy between devices.
        nodeless: It captures no work.
        opaque: It is nobody's that tells whether it draws random numbers.
    """

    __slots__ = (
        "_returned",
        "_written",
        "composite",
        "func",
        "indexes",
        "kind",
        "listed",
        "name",
        "nodeless",
        "opaque",
        "placed",
        "plain",
        "python_meta",
        "seeded",
        "valued",
        "writes",
    )

    def __init__(self, func: OpOverload) -> None:
        schema = func._schema
        self.func = func
        self.name = name_of(func)
        self.kind = _kind(func)
        self.seeded = Tag.nondeterministic_seeded in func.tags
        self.indexes = self.name in INDEXING
        self.valued = (
            Tag.data_dependent_output in func.tags
            or Tag.dynamic_output_shape in func.tags
            or self.name in ERROR_CHECKS
        )
        self.composite = _is_composite(func)
        self.listed = self.name.startswith(("aten._foreach_", "aten._fused_"))
        self.placed = any(argument.name == "device" for argument in schema.arguments)
        self.python_meta = META_KEY in func.py_kernels
        places = {
            place: argument
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        for place in HIDDEN_WRITES.get(schema.name, ()):
            places.setdefault(place, schema.arguments[place])
        self._written = tuple((place, argument.name) for place, argument in places.items())
        self._returned = _returned(schema) if self.kind is Kind.WRITE else ()
        self.writes = bool(self._written)
        self.nodeless = self.kind in NODELESS
        self.opaque = func.namespace not in TAGGED
        self.plain = (
            self.kind in (Kind.VIEW, Kind.FRESH, Kind.EMPTY)
            and not (self.writes or self.seeded or self.valued or self.indexes or self.opaque)
            and self.name not in UNPLAIN
        )

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
        """The tensors that a call changes."""
        for place, name in self._written:
            yield from tensors_in((_argument(place, name, args, kwargs),))

    def result(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call of kind WRITE returns: the arguments that it changed."""
        found = [_argument(place, name, args, kwargs) for place, name in self._returned]
        if not found:
            return None
        return found[0] if len(found) == 1 else tuple(found)


def describe(func: OpOverload) -> Operation:
    """The facts about ``func``."""
    # Hashing an overload is a call of a Python method: its address, which is kept, is not.
    found = _described.get(id(func))
    if found is None:
        found = _described[id(func)] = Operation(func)
    return found


_described: dict[int, Operation] = {}


def described(func: Any) -> Operation | None:
    """What ``describe`` has said of ``func``; None if it was not asked, or ``func`` is another."""
    return _described.get(id(func))


def value_reason(
    operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Reason | None:
    """Why a call makes the host wait for values of tensors, or None if it does not."""
    if operation.indexes:
        return Reason.MASK_INDEX if _waits_for_mask(operation, args, kwargs) else None
    if not operation.valued:
        return None
    if operation.name in ERROR_CHECKS:
        return Reason.ERROR_CHECK
    if operation.kind is not Kind.FRESH:
        return Reason.HOST_READ
    return None if kwargs.get("output_size") is not None else Reason.VALUE_SHAPE


def _waits_for_mask(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    indices = args[1] if len(args) > 1 else kwargs["indices"]
    masks = [index for index in indices if index is not None and index.dtype in MASK_DTYPES]
    if not masks:
        return False
    if operation.kind is not Kind.WRITE:
        return True
    # Storing one number by one mask is masked_fill_ to torch, which selects nothing.
    value = args[2] if len(args) > 2 else kwargs["values"]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    others = sum(index is not None for index in indices) - len(masks)
    one_number = value.numel() == 1 and value.device.type == "cpu"
    return not (one_number and not accumulate and len(masks) == 1 and not others)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments or results, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def _is_composite(func: OpOverload) -> bool:
    if has_kernel is None:
        return False
    name = func.name()
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CPU")


def _returned(schema: torch.FunctionSchema) -> tuple[tuple[int, str], ...]:
    """Place and name of the argument that each result is."""
    by_alias = {
        alias: (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None
        for alias in argument.alias_info.before_set
    }
    return tuple(
        by_alias[next(iter(value.alias_info.before_set))]
        for value in schema.returns
        if value.alias_info is not None
    )


def _argument(place: int, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[place] if place < len(args) else kwargs.get(name)


def _kind(func: OpOverload) -> Kind:
    schema = func._schema
    full_name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
    if func.namespace == "profiler":
        return Kind.UNRECORDED
    if full_name in UNSAFE_VIEWS:
        return Kind.VIEW
    if full_name in EMPTIES:
        return Kind.EMPTY
    if Tag.inplace_view in func.tags:
        return Kind.VIEW if full_name in HARMLESS_METADATA else Kind.METADATA
    returns = [value.alias_info for value in schema.returns]
    if returns and all(alias is not None and not alias.is_write for alias in returns):
        return Kind.VIEW
    writes = any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in schema.arguments
    )
    if writes and all(alias is not None for alias in returns):
        return Kind.WRITE
    if not any("Tensor" in str(value.type) for value in schema.returns):
        return Kind.QUERY if returns else Kind.EFFECT
    return Kind.FRESH
