"""One set of graphs and buffers of a callable, used by one forward and its backward at a time."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence

from tensorplay_core.errors import GraphStateError, StaleGraph

from .candidate import Candidate
from .lanes import Chain, Ticket
from .passes import Backward, Forward, Pattern, record_backward
from .settings import Settings

__all__ = ["Slot", "choose"]


class Slot:
    """See the module.

    Args:
        candidate: The callable.
        forward: Recorded for this slot.
        chain: The callables captured into the same pool.
        place: This one's place among them.
        settings: How it was captured.
        retains: Its backwards leave what they use, so that others may follow.

    Attributes:
        forward: The same.
        pending: The claim of the last forward, dead once nobody can ask for its backward.
        whole: The backward for gradients of all outputs.
    """

    def __init__(
        self,
        candidate: Candidate,
        forward: Forward,
        chain: Chain,
        place: int,
        *,
        settings: Settings,
        retains: bool,
    ) -> None:
        self.forward = forward
        self.chain, self.place = chain, place
        self.retains = retains
        self.pending: weakref.ref[Ticket] | None = None
        self.whole: Backward | None = None
        self.closed = False
        self._candidate, self._settings = candidate, settings
        self._backwards: dict[Pattern, Backward] = {}

    @property
    def claim(self) -> Ticket | None:
        """What a backward may still ask for; None if the slot is free."""
        ticket = self.pending() if self.pending is not None else None
        return ticket if ticket is not None and ticket.pending else None

    def issue(self, now: int) -> Ticket:
        """A claim on what a forward launched ``now`` leaves. It ends the one before."""
        before = self.pending() if self.pending is not None else None
        if before is not None:
            before.superseded = True
        ticket = Ticket(self.chain, self.place, now, self._candidate.subject)
        self.pending = weakref.ref(ticket)
        return ticket

    def record_backward(self, pool: Hashable) -> None:
        """Records the backward for gradients of all outputs, into ``pool``."""
        pattern = (True,) * len(self.forward.outputs.differentiable)
        self.whole = self._backwards[pattern] = self._record(pattern, pool)
        if not self.retains:
            # Activations are the pool's from here on: graphs captured later may use their memory.
            self.forward.outputs.computed.clear()

    def backward(self, pattern: Pattern, ticket: Ticket) -> Backward:
        """The backward for gradients of the outputs that ``pattern`` names.

        The first time a subset of several outputs is asked for, its backward is recorded, into a
        pool of its own: the memory of the others' is in use by now in ways no capture can know.

        Raises:
            GraphStateError: The callable was released.
            StaleGraph: ``ticket``, which asks, is not good any more.
            CaptureError: The backward cannot be captured.
        """
        if self.closed:
            raise GraphStateError(
                doing="running the backward of",
                subject=self._candidate.subject,
                met="it was released, or captured again, after the forward",
                remedy="Run backwards before release(), or call the forward again.",
            )
        recorded = self._backwards.get(pattern)
        if recorded is None:
            ticket.check()
            recorded = self._backwards[pattern] = self._record(pattern, None)
        return recorded

    def close(self) -> None:
        """Gives back graphs and memory. Idempotent."""
        self.closed = True
        self.forward.graph.close()
        for recorded in self._backwards.values():
            recorded.graph.close()
        self._backwards.clear()
        self.whole = None

    def _record(self, pattern: Pattern, pool: Hashable) -> Backward:
        return record_backward(
            self._candidate,
            self.forward,
            pattern,
            pool=pool,
            settings=self._settings,
            retain=self.retains,
        )


def choose(slots: Sequence[Slot], *, alias: bool, subject: str) -> Slot:
    """The slot for the next forward: a free one, else that with the oldest claim.

    Raises:
        StaleGraph: With aliases and none free: what it returned would change under the backward
            that still needs it.
    """
    oldest, issued = slots[0], None
    for slot in slots:
        claim = slot.claim
        if claim is None:
            return slot
        if issued is None or claim.serial < issued:
            oldest, issued = slot, claim.serial
    if alias:
        raise StaleGraph(
            doing="calling",
            subject=subject,
            met=f"it returns aliases, and all {len(slots)} of its slots hold outputs that a "
            "backward still needs",
            remedy="Run the backward, or drop the outputs, before the next forward; or pass "
            "slots=N for N forwards in flight, or outputs='copy'.",
        )
    return oldest
