"""Whether all that a captured step stands on is as it was, asked in each call; and following it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorplay_torch.compiled import parts
from tensorplay_torch.tracking.ran import Ran

from .dependencies import Dependencies
from .formulas import Key
from .groups import Groups
from .hyperparameters import Hyperparameters
from .recipe import Recipe

__all__ = ["Changes"]


class Changes:
    """See the module.

    Args:
        recipe: The step, as it was just captured.
        hyperparameters: Its numbers.
        ran: Functions of the user's code that ran in the capture.

    Attributes:
        unchanged: Called without arguments it returns True if nothing changed, or False if that
            needs a closer look: see ``follow``.
        dependencies: What nothing can follow.
        groups: The optimizer's groups, whose numbers can be followed.
    """

    def __init__(
        self, recipe: Recipe, hyperparameters: Hyperparameters, ran: Sequence[Ran] = ()
    ) -> None:
        self.dependencies = Dependencies(recipe, ran)
        self.groups = Groups(recipe.optimizer, hyperparameters)
        self.unchanged: Callable[[], bool] = self._look()

    def _look(self) -> Callable[[], bool]:
        dependencies, groups = self.dependencies.unchanged, self.groups.unchanged

        def unchanged() -> bool:
            return dependencies() and groups()

        compiled = parts()
        if compiled is None:
            return unchanged
        return compiled.All([*self.dependencies.checks, *self.groups.checks], unchanged)

    def doubt(self) -> None:
        """Nothing is unchanged until ``follow`` has said so."""
        self.unchanged = _not_yet

    def override(self, values: dict[Key, float]) -> None:
        """Puts these values into the graphs until they are overridden otherwise."""
        # Whatever breaks this off, the next ``follow`` goes on with it.
        before, self.unchanged = self.unchanged, _not_yet
        self.groups.override(values)
        self.unchanged = before

    def follow(self, then: Callable[[], object] = lambda: None) -> bool:
        """Makes the graphs compute with what there is now; False if that cannot be.

        Args:
            then: Called when they do, as part of it.
        """
        # Whatever breaks this off, the next call follows again.
        self.unchanged = _not_yet
        same = self._same()
        if not same and any(True for _ in self.dependencies.differences()):
            return False
        if not self.groups.follow():
            return False
        if not same:
            self.dependencies.note()
        then()
        self.unchanged = self._look()
        return True

    def _same(self) -> bool:
        """True if the checks, which see whatever ``differences`` does, say yes."""
        checks = self.dependencies.checks
        return bool(checks) and all(check() for check in checks) and self.dependencies.unchanged()

    def said(self) -> tuple[str, ...]:
        """What changed that cannot be followed, one line each."""
        return (*self.dependencies.differences(), *self.groups.differences())


def _not_yet() -> bool:
    return False
