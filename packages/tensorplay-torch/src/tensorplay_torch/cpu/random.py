"""Random generators during a CPU capture: nothing is drawn, and what is done by hand is noticed.

A replay draws from torch's generators as the eager operations would, so a capture need not touch
them. It does all the same: each draw that is recorded moves the generator a little, and whoever
sets its state by hand in between, such as a checkpoint that repeats the draws of a forward pass, is
seen by the next draw or at the end. Then the state from before the capture is put back.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tensorplay_torch.resources.generators import identity
from tensorplay_torch.tracking.refusals import Reason, refused

__all__ = ["Randomness"]


class Randomness:
    """The generators that a capture may draw from.

    Args:
        generators: Those beside the default one.
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self._known = {
            identity(one): _Watched(one) for one in (torch.default_generator, *generators)
        }

    def draw(self, operation: object, generator: torch.Generator | None) -> None:
        """``operation`` draws from ``generator``, where None is the default one.

        Raises:
            OperationRefused: The graph does not know it, or its state was changed by hand.
        """
        watched = self._known.get(identity(generator or torch.default_generator))
        if watched is None:
            raise refused(operation, Reason.RNG_UNREGISTERED)
        if watched.changed():
            raise refused(operation, Reason.RNG_BY_HAND)
        watched.advance()

    def check(self) -> None:
        """Refuses a capture that left a generator in a state of its own making.

        Raises:
            OperationRefused: It did.
        """
        if any(watched.changed() for watched in self._known.values()):
            raise refused("setting a generator's state", Reason.RNG_BY_HAND)

    def restore(self) -> None:
        """Puts every generator back to where it was before the capture."""
        for watched in self._known.values():
            watched.restore()


class _Watched:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._before = self._expected = generator.get_state()

    def changed(self) -> bool:
        return not torch.equal(self._generator.get_state(), self._expected)

    def advance(self) -> None:
        torch.rand((), generator=self._generator)
        self._expected = self._generator.get_state()

    def restore(self) -> None:
        self._generator.set_state(self._before)
