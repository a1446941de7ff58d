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

import threading
import time
from collections.abc import Iterable

import torch

from tensorplay_torch.resources.generators import identity, putting_back
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

_lock = threading.RLock()
_watched: dict[int, _Watched] = {}


class Randomness:
    """The generators that a capture may draw from.

    Args:
        generators: Those beside the default one.

    Attributes:
        drew: The captured work draws random numbers.
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self._generators = (torch.default_generator, *generators)
        self._known: dict[int, _Watched] = {}
        self.drew = False

    def start(self) -> None:
        """The capture begins."""
        for generator in self._generators:
            key = identity(generator)
            with _lock:
                watched = _watched.get(key)
                if watched is None:
                    watched = _watched[key] = _Watched(generator)
                self._known[key] = watched
                watched.join(self)

    def draw(self, operation: object, generator: torch.Generator | None) -> None:
        """``operation`` draws from ``generator``, where None is the default one.

        Raises:
            OperationRefused: The graph does not know it, or its state was changed by hand.
        """
        watched = self._known.get(identity(generator or torch.default_generator))
        if watched is None:
            raise refused(operation, Reason.RNG_UNREGISTERED)
        with _lock:
            if watched.was_set(self):
                raise refused(operation, Reason.RNG_BY_HAND)
            watched.advance()
        self.drew = True

    def check(self) -> None:
        """Refuses a capture that left a generator in a state of its own making.

        Raises:
            OperationRefused: It did.
        """
        with _lock:
            changed = any(watched.was_set(self) for watched in self._known.values())
        if changed:
            raise refused("setting a generator's state", Reason.RNG_BY_HAND)

    def restore(self) -> None:
        """Puts every generator back to where it was before the capture. Idempotent."""
        for key, watched in self._known.items():
            with _lock:
                watched.captures.pop(self, None)
                if not watched.captures and _watched.get(key) is watched:
                    watched.restore()
                    del _watched[key]


class _Watched:
    """One generator, for all the captures that are under way in the process.

    Attributes:
        captures: How often its state had been set by hand when each of them began.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.captures: dict[Randomness, int] = {}
        self._generator = generator
        self._shadow = torch.Generator()
        self._before = self._expected = generator.get_state()
        self._times = 0
        self._shared = self._spoilt = False

    def join(self, capture: Randomness) -> None:
        """``capture`` begins."""
        if self._is_set():
            # A thread did that before its own capture, beside that of another: it stays.
            self._before = self._expected
        self.captures[capture] = self._times
        self.advance()

    def was_set(self, capture: Randomness) -> bool:
        """True if the state was set by hand since ``capture`` began."""
        if self._is_set():
            self._spoilt = True
        return self._times != self.captures[capture]

    def advance(self) -> None:
        """Draws a number."""
        # First what is to be expected: an interrupt before the draw looks like a state set by hand.
        self._shadow.set_state(self._expected)
        torch.rand((), generator=self._shadow)
        self._expected = self._shadow.get_state()
        torch.rand((), generator=self._generator)

    def put_back(self, state: torch.Tensor) -> None:
        """Undoes what a thread drew beside: it has that state again, and is to have it at last."""
        self._is_set()
        self._generator.set_state(state)
        self._before = self._expected = state

    def restore(self) -> None:
        """Puts the state back, unless that would make other threads draw the same numbers again."""
        if self._is_set() or self._spoilt:
            self._generator.set_state(self._before)
        elif not self._shared:
            self._restore_unless_drawn()

    def _restore_unless_drawn(self) -> None:
        """Looks and puts back with nobody in between: torch has no way to do both at once."""
        # Having let others run, this thread has the interpreter to itself for a while. What they
        # had begun to draw by then is drawn by the time that the first list is made.
        time.sleep(0)
        expected = self._expected.tolist()
        # Lists: to compare tensors lets other threads run.
        if self._generator.get_state().tolist() == expected:
            self._generator.set_state(self._before)

    def _is_set(self) -> bool:
        now = self._generator.get_state()
        if torch.equal(now, self._expected):
            return False
        by_hand = not _drawn(self._expected, now)
        self._times += by_hand
        self._shared, self._expected = self._shared or not by_hand, now
        return by_hand


def _put_back(generator: torch.Generator, state: torch.Tensor) -> bool:
    with _lock:
        watched = _watched.get(identity(generator))
        if watched is not None:
            watched.put_back(state)
        return watched is not None


putting_back.append(_put_back)


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
