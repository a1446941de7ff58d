"""The first step of an optimizer, which may be unlike the others, while it is still to come."""

from __future__ import annotations

from typing import Any

from .birth import Birth
from .changes import Changes
from .optimizers import begins_by_rate, create_state, damped_keys, is_untouched
from .recipe import Recipe

__all__ = ["FirstStep"]


class FirstStep:
    """See the module.

    Args:
        recipe: What a step does.
        changes: Of the graph that takes it.
        birth: The optimizer's state as no step has changed it yet; None if one has.

    Attributes:
        to_come: It is.
    """

    def __init__(self, recipe: Recipe, changes: Changes, birth: Birth | None) -> None:
        self._recipe, self._changes, self._birth = recipe, changes, birth
        self.to_come = birth is not None
        self._launching: list[dict[str, Any]] = []
        if self.to_come:
            self._override(to_come=True)

    @property
    def overridden(self) -> bool:
        """The graph holds other numbers for it than for the steps that follow."""
        return bool(self._changes.groups.overridden)

    def look(self) -> None:
        """Notices if somebody else took it, or if it was taken when a call was broken off."""
        if self.to_come and (self._birth is None or self._birth.over or self._was_launched()):
            self._end()

    def _was_launched(self) -> bool:
        if not self._launching or self._birth is None:
            return False
        groups, self._launching = self._launching, []
        counter = self._recipe.features.taken
        if counter is not None:
            return bool(counter.item())
        return not is_untouched(self._recipe.optimizer, self._birth.entries, groups)

    def followed(self) -> None:
        """Numbers changed before it: some state begins as the learning rate of the first step."""
        optimizer = self._recipe.optimizer
        if self.to_come and self._birth is not None and begins_by_rate(optimizer):
            self._birth.write(lambda entries: create_state(optimizer, entries))

    def launch(self) -> None:
        """A step is about to be launched. Until ``taken`` nobody knows whether it was."""
        self._launching = [dict(group) for group in self._recipe.optimizer.param_groups]

    def taken(self) -> None:
        """A step was launched, which may have been left out for gradients that are not finite."""
        counter = self._recipe.features.taken
        if self._birth is not None and counter is not None and not counter.item():
            self._birth.note()
            self._launching = []
            return
        self._end()

    def put(self, *, to_come: bool) -> None:
        """The state is put back to before it, or after it."""
        if to_come is self.to_come:
            return
        if self._birth is not None:
            self._birth.note() if to_come else self._birth.end()
        counter = self._recipe.features.taken
        if to_come and counter is not None:
            counter.zero_()
        self._override(to_come=to_come)
        self.to_come = to_come

    def _end(self) -> None:
        if self._birth is not None:
            self._birth.end()
        self._override(to_come=False)
        # Last: whoever breaks this off before, it is done again.
        self.to_come, self._launching = False, []

    def _override(self, *, to_come: bool) -> None:
        damped = damped_keys(self._recipe.optimizer) if to_come else ()
        self._changes.override(dict.fromkeys(damped, 0.0))
