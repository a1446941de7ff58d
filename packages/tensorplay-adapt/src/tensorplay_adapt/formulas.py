"""Which hyper-parameter, in which form, a captured number is: found by changing them and looking.

An optimizer's step puts its hyper-parameters into arguments of operations and kernels: as they are,
negated, as ``1 - beta``, as ``1 - lr * weight_decay``, as a double or as a float. The same step
captured with other values differs in exactly those bytes. A place is understood if one formula
gives what stands there for every set of values that was tried; a place that differs and is not
understood makes hyper-parameters frozen, never wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = ["Formula", "Key", "Place", "Values", "explain", "formulas"]

Key: TypeAlias = "tuple[int, str, int | None]"
"""Group, name, and the index where the value is a tuple: ``(0, "betas", 1)``."""
Values: TypeAlias = "Mapping[Key, float]"

DOUBLE, FLOAT, PAIR = struct.Struct("<d"), struct.Struct("<f"), struct.Struct("<II")
ADDRESSES = range(0x5500, 0x8000)
"""Upper words of the addresses that a process has its heaps, libraries and stacks at."""
ORDINARY = (1e-12, 1e12)


class Formula(NamedTuple):
    """One form in which hyper-parameters reach a kernel."""

    keys: tuple[Key, ...]
    of: Callable[[Values], float]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a formula's value stands.

    Attributes:
        node: Index of the node.
        offset: Of its first byte in the node's data.
        packing: As a double or as a float.
    """

    node: int
    offset: int
    packing: struct.Struct
    formula: Formula


def formulas(values: Values, factors: Iterable[tuple[Key, float]] = ()) -> Iterator[Formula]:
    """The forms worth trying, plain ones first.

    Args:
        values: The hyper-parameters.
        factors: Numbers that a step multiplies a hyper-parameter by.
    """
    for key in values:
        yield from _of_one(key)
    for key, factor in factors:
        yield Formula((key,), lambda v, k=key, f=factor: v[k] * f)  # type: ignore[misc]
        yield Formula((key,), lambda v, k=key, f=factor: -(v[k] * f))  # type: ignore[misc]
    for one in values:
        for other in values:
            if one[0] == other[0] and one < other:
                yield from _of_two(one, other)


def _of_one(key: Key) -> Iterator[Formula]:
    forms: tuple[Callable[[float], float], ...] = (
        lambda x: x,
        lambda x: -x,
        lambda x: 1 - x,
        lambda x: -(1 - x),
        lambda x: 1 / x if x else float("inf"),
        # A kernel that divides by a number multiplies by the float next to its reciprocal.
        lambda x: 1 / _single(x) if _single(x) else float("inf"),
    )
    for form in forms:
        yield Formula((key,), lambda v, f=form: f(v[key]))  # type: ignore[misc]


def _of_two(one: Key, other: Key) -> Iterator[Formula]:
    forms: tuple[Callable[[float, float], float], ...] = (
        lambda x, y: x * y,
        lambda x, y: -x * y,
        lambda x, y: 1 - x * y,
    )
    for form in forms:
        yield Formula((one, other), lambda v, f=form: f(v[one], v[other]))  # type: ignore[misc]


def _single(value: float) -> float:
    try:
        return float(FLOAT.unpack(FLOAT.pack(value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def packed(packing: struct.Struct, value: float) -> bytes:
    """The bytes of a value, rounded to a float as C does."""
    return packing.pack(_single(value) if packing is FLOAT else value)


def explain(
    known: Sequence[Formula], trials: Sequence[tuple[Values, Sequence[bytes]]]
) -> tuple[list[Place], list[tuple[int, int]]]:
    """What the bytes of nodes mean that differ between trials.

    Args:
        known: Formulas, those to be preferred first.
        trials: Hyper-parameters, and the data of each node captured with them. Of the first trial
            the values are those of the graph; data of equal nodes have equal lengths.

    Returns:
        The places understood, and node and offset of each word of four bytes that is not.
    """
    patterns = _patterns(known, trials[0][0])
    places: list[Place] = []
    unknown: list[tuple[int, int]] = []
    for node, datas in enumerate(zip(*(data for _, data in trials), strict=True)):
        explained: set[int] = set()
        differing = _differing(datas)
        for offset in differing:
            if offset in explained:
                continue
            place = _place(patterns, trials, datas, node, offset)
            if place is None:
                if not _are_addresses(datas, offset):
                    unknown.append((node, offset))
                continue
            places.append(place)
            explained.update(range(place.offset, place.offset + place.packing.size, 4))
    return places, unknown


def _patterns(known: Sequence[Formula], values: Values) -> dict[bytes, list[Formula]]:
    found: dict[bytes, list[Formula]] = {}
    for formula in known:
        value = formula.of(values)
        for packing in (DOUBLE, FLOAT):
            found.setdefault(packed(packing, value), []).append(formula)
    return found


def _differing(datas: Sequence[bytes]) -> Iterator[int]:
    first = datas[0]
    if all(data == first for data in datas[1:]):
        return
    for offset in range(0, len(first), 4):
        word = first[offset : offset + 4]
        if any(data[offset : offset + 4] != word for data in datas[1:]):
            yield offset


def _are_addresses(datas: Sequence[bytes], offset: int) -> bool:
    """True if what stands there is an address in each trial, or none at all.

    The unused part of a kernel's parameters holds what lay on the stack of the host: addresses,
    which may differ from trial to trial as if they depended on the values. An address in the upper
    word makes a double that is next to nothing. Beside an integer as large, the lower word may be a
    float all the same; as such it would be of ordinary size.
    """
    start = offset - offset % 8
    if start + 8 > len(datas[0]):
        return False
    words = [PAIR.unpack_from(data, start) for data in datas]
    if not all(upper in ADDRESSES or not (upper or lower) for lower, upper in words):
        return False
    if len({upper for _, upper in words}) > 1:
        return True
    floats = [abs(float(FLOAT.unpack_from(data, start)[0])) for data in datas]
    return not all(ORDINARY[0] < one < ORDINARY[1] for one in floats)


def _place(
    patterns: Mapping[bytes, Sequence[Formula]],
    trials: Sequence[tuple[Values, Sequence[bytes]]],
    datas: Sequence[bytes],
    node: int,
    offset: int,
) -> Place | None:
    # A double may differ in its upper word only.
    for start, packing in ((offset, DOUBLE), (offset - 4, DOUBLE), (offset, FLOAT)):
        if start < 0 or start + packing.size > len(datas[0]):
            continue
        for formula in patterns.get(datas[0][start : start + packing.size], ()):
            if all(
                packed(packing, formula.of(values)) == data[start : start + packing.size]
                for (values, _), data in zip(trials, datas, strict=True)
            ):
                return Place(node, start, packing, formula)
    return None
