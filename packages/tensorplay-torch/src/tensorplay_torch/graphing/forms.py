"""How tensors lie in their memory, which may change though that stays where it is.

``p.data = p.data[:2]``, ``p.data = p.data.t()`` and ``p.t_()`` leave a tensor its address, and what
reads it another one. To ask for a form costs several times as much as for an address, so the
forms of tensors are looked at in turn, some together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch

__all__ = ["Form", "Forms", "form_of", "reformed"]

TOGETHER = 2
"""How many forms are looked at together: as long as a look at a module takes."""

Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int, bool, bool]
WORDS = ("shape", "strides", "dtype", "storage offset", "conjugate bit", "negative bit")


class Forms:
    """The forms of tensors, looked at together.

    Args:
        tensors: Whose forms are to stay as they are.
    """

    __slots__ = ("_pairs",)

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._pairs = [(one, *form_of(one)) for one in tensors]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> Iterator[Self]:
        """As many of these as take turns for ``tensors``."""
        for first in range(0, len(tensors), TOGETHER):
            yield cls(tensors[first : first + TOGETHER])

    @property
    def changed(self) -> bool:
        """True if one is not as it was."""
        # Half of what it takes to make forms and compare those.
        for one, shape, strides, dtype, offset, conjugate, negative in self._pairs:
            if (
                one.shape != shape
                or one.stride() != strides
                or one.dtype is not dtype
                or one.storage_offset() != offset
                or one.is_conj() is not conjugate
                or one.is_neg() is not negative
            ):
                return True
        return False

    def changes(self) -> Iterator[str]:
        """Nothing: who holds a tensor says what became of it."""
        yield from ()


def form_of(tensor: torch.Tensor) -> Form:
    """How a tensor lies in its memory."""
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        int(tensor.storage_offset()),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def reformed(name: str, was: Form, now: Form) -> Iterator[str]:
    """What is other about the form of the tensor that errors call ``name``."""
    for word, before, after in zip(WORDS, was, now, strict=True):
        if before != after:
            yield f"{name} has {word} {_said(after)}, had {_said(before)}"


def _said(part: object) -> object:
    return tuple(part) if isinstance(part, tuple) else part
