"""The operands of captured work, found by the addresses that its nodes mention.

CuPy tells nobody what a kernel is launched on. So every array on a GPU that is alive when a capture
begins is held until it ends; then those whose memory a node mentions are the graph's, and the
others are let go. Arrays made meanwhile are looked for among the youngest objects, which nothing
collects during a capture.
"""

from __future__ import annotations

import gc
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import cupy

from .memory import block_of

__all__ = ["Operand", "Operands", "witnesses"]

_UNREADABLE = (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What arrays of other libraries raise that have no memory on a GPU to speak of."""


class Operand(NamedTuple):
    """An array and the memory under it.

    Attributes:
        start: First address of the memory.
        stop: The one after the last.
        memory: What keeps the memory alive, and nothing else.
        array: The array, or what it is a view of.
    """

    start: int
    stop: int
    memory: object
    array: Any


class Operands:
    """The arrays that work captured from now on may use."""

    def __init__(self) -> None:
        self._before = list(_arrays(gc.get_objects()))

    def forget(self) -> None:
        """Lets go of all of them."""
        self._before = []

    def all(self, born: set[int]) -> list[Operand]:
        """Every array that was alive when the capture began, and those made since.

        Args:
            born: Addresses of blocks that were handed out in the capture: none of the graph's
                operands, but its own.
        """
        young = _arrays(gc.get_objects(generation=0))
        found = {
            id(operand.array): operand
            for operand in map(_operand, (*self._before, *young))
            if operand is not None and operand.start and operand.start not in born
        }
        return list(found.values())

    def used(self, words: Iterable[int], born: set[int]) -> list[Operand]:
        """Those of ``all`` whose memory begins at or contains one of ``words``.

        Args:
            words: Values in the parameters of what was captured.
            born: As in ``all``.
        """
        sought = sorted(set(words))

        def mentioned(operand: Operand) -> bool:
            place = bisect_left(sought, operand.start)
            return place < len(sought) and sought[place] < max(operand.stop, operand.start + 1)

        return [operand for operand in self.all(born) if mentioned(operand)]


class _Witness:
    """Lives as long as any of the arrays it was made for; it says what they are."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def noted(self) -> None:
        """An array died. What holds this method holds the witness."""


def witnesses(operands: Iterable[Operand]) -> list[object]:
    """One object for each piece of memory, which dies with the last array on it."""
    made: dict[int, _Witness] = {}
    for operand in operands:
        array = operand.array
        text = f"a {type(array).__name__} of shape {tuple(array.shape)} at {operand.start:#x}"
        witness = made.setdefault(operand.start, _Witness(text))
        weakref.finalize(array, witness.noted).atexit = False
    return list(made.values())


def _arrays(objects: Iterable[object]) -> Iterator[Any]:
    everything = list(objects)
    # By class, because asking an object for an attribute may run anything.
    kinds = {kind for kind in set(map(type, everything)) if _is_array(kind)}
    return (one for one in everything if type(one) in kinds)


def _is_array(kind: type) -> bool:
    return any("__cuda_array_interface__" in vars(base) for base in kind.__mro__)


def _operand(array: Any) -> Operand | None:
    read: Callable[[Any], Operand | None] = _read_foreign
    if isinstance(array, cupy.ndarray):
        read = _read_cupy
    elif callable(getattr(type(array), "untyped_storage", None)):
        read = _read_torch
    try:
        return read(array)
    except _UNREADABLE:
        return None


def _read_cupy(array: Any) -> Operand:
    start, size = block_of(array)
    root = array.base if array.base is not None else array
    return Operand(start, start + size, array.data.mem, root)


def _read_torch(array: Any) -> Operand | None:
    if not array.is_cuda:
        return None
    storage = array.untyped_storage()
    start = int(storage.data_ptr())
    return Operand(start, start + int(storage.nbytes()), storage, array)


def _read_foreign(array: Any) -> Operand:
    told = array.__cuda_array_interface__
    start, shape, strides = int(told["data"][0]), told["shape"], told.get("strides")
    itemsize = int(told["typestr"][2:])
    reach = itemsize
    if strides is None:
        for extent in shape:
            reach *= extent
    else:
        spans = zip(strides, shape, strict=True)
        reach += sum(max(step * (extent - 1), 0) for step, extent in spans)
    return Operand(start, start + reach, array, array)
