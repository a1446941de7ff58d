"""Random generators during a CPU capture: nothing is drawn, and what is done by hand is noticed.

A replay draws from torch's generators as the eager operations would, so a capture need not touch
them. It does all the same: it moves each of them a little when it begins and with each draw that is
recorded, so that no state of before comes up again. Whoever sets the state by hand in between, such
as ``manual_seed`` or a checkpoint that repeats the draws of a forward pass, is seen by the next
draw or at the end. Other threads may draw meanwhile: their draws lead on from the state that was
left, and what is set by hand does not. In the end the state from before the capture is put back,
unless others have drawn: they would draw the same numbers again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tensorplay_torch.resources.generators import identity
from tensorplay_torch.tracking.refusals import Reason, refused

__all__ = ["Randomness"]

# Where torch keeps what in the bytes of a state: the seed, how many numbers the block has left, and
# the block of the Mersenne twister.
SEED = slice(0, 8)
LEFT = slice(8, 12)
BLOCK = slice(24, 24 + 624 * 8)
NUMBERS = 624
"""In a block."""
FAR = 1 << 24
"""So many numbers another thread may draw between two draws of a capture."""


class Randomness:
    """The generators that a capture may draw from.

    Args:
        generators: Those beside the default one.
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self._known = {
            identity(one): _Watched(one) for one in (torch.default_generator, *generators)
        }

    def start(self) -> None:
        """The capture begins."""
        for watched in self._known.values():
            watched.start()

    def draw(self, operation: object, generator: torch.Generator | None) -> None:
        """``operation`` draws from ``generator``, where None is the default one.

        Raises:
            OperationRefused: The graph does not know it, or its state was changed by hand.
        """
        watched = self._known.get(identity(generator or torch.default_generator))
        if watched is None:
            raise refused(operation, Reason.RNG_UNREGISTERED)
        if watched.set_by_hand():
            raise refused(operation, Reason.RNG_BY_HAND)
        watched.advance()

    def check(self) -> None:
        """Refuses a capture that left a generator in a state of its own making.

        Raises:
            OperationRefused: It did.
        """
        if any(watched.set_by_hand() for watched in self._known.values()):
            raise refused("setting a generator's state", Reason.RNG_BY_HAND)

    def restore(self) -> None:
        """Puts every generator back to where it was before the capture."""
        for watched in self._known.values():
            watched.restore()


class _Watched:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._shadow = torch.Generator()
        self._before: torch.Tensor | None = None
        self._shared = False

    def start(self) -> None:
        self._before = self._expected = self._generator.get_state()
        self.advance()

    def set_by_hand(self) -> bool:
        now = self._generator.get_state()
        if torch.equal(now, self._expected):
            return False
        if not _drawn(self._expected, now):
            return True
        self._shared, self._expected = True, now
        return False

    def advance(self) -> None:
        # First what is to be expected: an interrupt before the draw looks like a state set by hand.
        self._shadow.set_state(self._expected)
        torch.rand((), generator=self._shadow)
        self._expected = self._shadow.get_state()
        torch.rand((), generator=self._generator)

    def restore(self) -> None:
        if self._before is not None and (self.set_by_hand() or not self._shared):
            self._generator.set_state(self._before)
        self._before = None


def _drawn(before: torch.Tensor, now: torch.Tensor) -> bool:
    """True if drawing numbers leads from one state to the other."""
    if not torch.equal(before[SEED], now[SEED]):
        return False
    if torch.equal(before[BLOCK], now[BLOCK]):
        left, still = (int(state[LEFT].view(torch.int32)) for state in (before, now))
        return still <= left
    walker, numbers = torch.Generator(), torch.empty(NUMBERS, dtype=torch.int32)
    walker.set_state(before)
    for _ in range(FAR // NUMBERS):
        numbers.random_(generator=walker)
        if torch.equal(walker.get_state()[BLOCK], now[BLOCK]):
            return True
    return False
