"""Tensors that must stay what they were: where their memory is, and what is read there.

``p.data = p.data[:2]``, ``p.t_()`` and ``p.as_strided_`` leave a tensor the same object at the same
address. With compiled parts all of that is looked at in each call. Without them torch's own guards
tell it; they say no as well where the mode is another one, under autocast or in inference mode, and
then the forms themselves decide. Where memory is, is asked in each call; how an optimizer's own
state is read there, which hardly any code changes, takes turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from tensorplay_core.signature import a_type
from tensorplay_torch.compiled import parts
from tensorplay_torch.graphing.forms import Form, form_of, reformed
from tensorplay_torch.graphing.forms import Forms as InTurn
from tensorplay_torch.resources.signatures import PLAIN, guard_of, plain

from .turning import in_turn

__all__ = ["Forms"]

KINDS = 4
"""How many modes a check learns to say yes in fast."""

_address: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr


class Forms:
    """See the module.

    Args:
        tensors: With what errors call them.
        turning: Further ones, whose shapes and the like are looked at in turn.

    Attributes:
        unchanged: Called without arguments it returns True if they are what they were.
    """

    def __init__(
        self, tensors: Mapping[torch.Tensor, str], turning: Mapping[torch.Tensor, str]
    ) -> None:
        self._tensors, self._all = list(tensors), [*tensors, *turning]
        self._names = [*tensors.values(), *turning.values()]
        self._kinds = list(map(type, self._all))
        self._addresses = list(map(_address, self._all))
        self._forms = _now(self._all)
        self._turns = list(InTurn.of(list(turning)))
        self._guards: list[Callable[..., bool]] = []
        self._learn()
        self.unchanged = self._compiled()

    def _learn(self) -> None:
        if len(self._guards) < KINDS and plain(self._tensors):
            guard = guard_of(self._tensors)
            if guard is not None:
                self._guards.append(guard)

    def _compiled(self) -> Callable[[], bool]:
        tensors, addresses, guards = self._tensors, self._addresses, self._guards
        everything, kinds, slowly = self._all, self._kinds, self._unchanged_slowly
        compiled = parts()
        # Others may answer by code of their own.
        if compiled is not None and all(type(one) in PLAIN for one in everything):
            return compiled.Unmoved(everything)
        turned = in_turn(self._turns)

        def unchanged() -> bool:
            # First, as a tensor that was swapped with a nested one must not reach a guard.
            if list(map(_address, everything)) != addresses:
                return False
            if list(map(type, everything)) != kinds:
                return False
            if not turned():
                return False
            for guard in guards:
                if guard(*tensors):
                    return True
            return slowly()

        return unchanged

    def _unchanged_slowly(self) -> bool:
        """Where no guard says yes; where the mode alone is another, the next call's will."""
        try:
            if _now(self._tensors) != self._forms[: len(self._tensors)]:
                return False
        except (RuntimeError, NotImplementedError):  # A nested tensor has no strides.
            return False
        self._learn()
        return True

    def differences(self) -> Iterator[str]:
        """What changed, one line each."""
        for tensor, name, kind in zip(self._all, self._names, self._kinds, strict=True):
            if type(tensor) is not kind:
                yield f"{name} is {a_type(tensor)}, was a {kind.__name__}"
        known = zip(self._all, self._names, self._addresses, self._forms, strict=True)
        for tensor, name, address, (form, requires_grad) in known:
            if _address(tensor) != address:
                yield f"{name} moved to other memory"
            try:
                yield from reformed(name, form, form_of(tensor))
            except (RuntimeError, NotImplementedError):
                yield f"{name} has no strides, had {form[1]}"
            if tensor.requires_grad is not requires_grad:
                yield f"{name}.requires_grad is {tensor.requires_grad}, was {requires_grad}"


def _now(tensors: list[torch.Tensor]) -> list[tuple[Form, bool]]:
    return [(form_of(one), one.requires_grad) for one in tensors]
