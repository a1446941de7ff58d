"""What an array was when it was captured, and how another differs from it, said in words.

The fast checks are the drivers'; this is the slow comparison that decides when one of them says no,
and that names every difference. It asks arrays by the attributes that torch, CuPy, NumPy and the
drivers' own buffers share, so core needs none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import SignatureMismatch

__all__ = [
    "ArrayFacts",
    "a_type",
    "differences",
    "facts",
    "named",
    "refuse_unless_equal",
    "shape_differences",
]


@dataclass(frozen=True, slots=True)
class ArrayFacts:
    """One array, as a signature sees it.

    Attributes:
        shape: Its extents.
        strides: In the array's own unit (elements for torch, bytes for NumPy and CuPy), None where
            the array does not say. Those of extents under 2 are dropped: they address nothing.
        dtype: Its name.
        device: Its name, ``""`` where the array does not say.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: str


def facts(array: Any) -> ArrayFacts:
    """The facts of one array.

    Raises:
        AttributeError: It has no ``shape``, or none of numbers (as nested and symbolic tensors).
    """
    try:
        shape = tuple(int(extent) for extent in array.shape)
        stride = getattr(array, "stride", None)
        strides = stride() if callable(stride) else getattr(array, "strides", None)
    except (RuntimeError, TypeError, ValueError) as error:
        raise AttributeError(f"{a_type(array)} without a shape of numbers") from error
    if strides is not None:
        strides = tuple(
            int(step) for step, extent in zip(strides, shape, strict=True) if extent > 1
        )
    if 0 in shape:
        strides = ()
    return ArrayFacts(
        shape, strides, str(getattr(array, "dtype", "")), str(getattr(array, "device", ""))
    )


def a_type(value: object) -> str:
    """``an int``, ``a Tensor``: the type of ``value`` with its article."""
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeioAEIO' else 'a'} {name}"


def named(value: object) -> str:
    """What an error calls ``value``: never its elements, which cannot be read inside a capture."""
    try:
        known = facts(value)
    except AttributeError:
        try:
            return f"{value!r:.80}"
        except Exception:  # Arrays inside it, whose values cannot be read now.
            return a_type(value)
    place = f" on {known.device}" if known.device else ""
    return f"{type(value).__name__} of shape {known.shape} and dtype {known.dtype}{place}"


def differences(
    captured: Sequence[ArrayFacts], given: Sequence[Any], *, path: str = "inputs"
) -> list[str]:
    """Every difference of ``given`` from ``captured``, one line each; empty if there is none."""
    return _compare(captured, given, path, ("shape", "strides", "dtype", "device"))


def shape_differences(
    captured: Sequence[ArrayFacts], given: Sequence[Any], *, path: str = "inputs"
) -> list[str]:
    """As ``differences``, of count and shapes only: what a converting copy cannot bridge."""
    return _compare(captured, given, path, ("shape",))


def _compare(
    captured: Sequence[ArrayFacts], given: Sequence[Any], path: str, names: Iterable[str]
) -> list[str]:
    if len(captured) != len(given):
        return [f"len({path}): captured {len(captured)}, got {len(given)}"]
    found = []
    for place, (before, array) in enumerate(zip(captured, given, strict=True)):
        here = f"{path}[{place}]"
        try:
            now = facts(array)
        except AttributeError:
            found.append(f"{here}: captured an array, got {type(array).__name__}")
            continue
        for name in names:
            was, got = getattr(before, name), getattr(now, name)
            if was != got and None not in (was, got):
                found.append(f"{here}.{name}: captured {was}, got {got}")
    return found


def refuse_unless_equal(
    captured: Sequence[ArrayFacts], given: Sequence[Any], *, subject: str, doing: str = "calling"
) -> None:
    """Raises SignatureMismatch with every difference, or returns if there is none."""
    found = differences(captured, given)
    if found:
        raise SignatureMismatch(differences=found, subject=subject, doing=doing)
