"""Who may replay when: graphs that share memory, and what of it a pending backward still needs.

A forward leaves activations in the pool for its backward. Graphs that were captured into that pool
while those were alive leave them alone; others may have been given the same memory. In a tuple of
callables, forwards captured in order and backwards in reverse, that means: a launch of one spoils
what the callables after it have left, never what those before it have. Graphs of another call of
``make_graphed_callables`` in the same pool spoil everything. Nothing is forbidden: what was spoiled
is refused when a backward asks for it.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tensorplay_core.errors import GraphStateError, StaleGraph
from tensorplay_torch._private import PRIVATE
from tensorplay_torch.resources.devices import index_of

__all__ = ["Lane", "Chain", "Ticket", "lane_of", "reentered"]


class Lane:
    """One pool's graphs, which run one at a time and in the order of their launches.

    Args:
        device: Where they run.

    Attributes:
        lock: Held around each launch with its copies.
        held: ``held()`` says whether this thread holds the lock: code in the midst of a launch has
            called back, and must not launch.
        clock: Counts launches that leave or use activations.
        chains: Those captured into the pool.
    """

    def __init__(self, device: torch.device) -> None:
        # Whoever enters asks first whether it is his already: see ``reentered``.
        self.lock = threading.RLock()
        self.held: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self.clock = 0
        self.chains: weakref.WeakSet[Chain] = weakref.WeakSet()
        self._device = device
        self._stream: int | None = None
        self._current: Callable[[int], int] | None = None
        if device.type == "cuda":
            self._current = PRIVATE["current_raw_stream"].value or _current_handle
            self._index = index_of(device)

    @contextmanager
    def entered(self, subject: str) -> Iterator[None]:
        """The lock held, for launches that come after the last one.

        Raises:
            GraphStateError: This thread holds it already.
        """
        if self.held():
            raise reentered(subject)
        with self.lock:
            self.follow()
            yield

    def follow(self) -> None:
        """Lets what is launched next, on this thread's current stream, come after the last launch.

        Called under the lock.
        """
        if self._current is not None:
            handle = self._current(self._index)
            if handle != self._stream:
                self._switch(handle)

    def _switch(self, handle: int) -> None:
        before, self._stream = self._stream, handle
        if before is not None:
            try:
                _stream(handle, self._device).wait_stream(_stream(before, self._device))
            except RuntimeError:
                # The stream is gone; what ran on it need not be done.
                torch.cuda.synchronize(self._device)


class Chain:
    """Callables captured together into one pool: forwards in order, backwards in reverse.

    Args:
        lane: Of the pool.
        count: How many callables.

    Attributes:
        last: When each was last launched, forward or backward.
        latest: When any of them was.
    """

    def __init__(self, lane: Lane, count: int) -> None:
        self.lane = lane
        self.last = [0] * count
        self.latest = 0
        lane.chains.add(self)

    def launched(self, place: int) -> int:
        """Callable ``place`` was launched; returns when. Called under the lane's lock."""
        lane = self.lane
        lane.clock = self.latest = self.last[place] = now = lane.clock + 1
        return now


def reentered(subject: str) -> GraphStateError:
    """The error for a call by code that runs in the midst of another call."""
    return GraphStateError(
        doing="calling",
        subject=subject,
        met="this thread is in the midst of a call of it, or of one that shares its pool, and a "
        "finaliser, a signal handler or a custom operation called it from in there",
        remedy="Let such code note what is to be done and do it later, or call what is without "
        "graphs there (.original of a function).",
    )


_serials = itertools.count()


class Ticket:
    """One forward's claim on what it left for its backward.

    Args:
        chain: The callables captured together.
        place: Which of them.
        now: When the forward was launched.
        subject: What errors call the callable.

    Attributes:
        serial: Later tickets have a higher one.
        versions: Of the parameters, when the forward was launched.
        spent: The backward ran, and may have overwritten what it used.
        superseded: A later forward took the slot.
    """

    __slots__ = (
        "__weakref__",
        "_chain",
        "_now",
        "_place",
        "_subject",
        "serial",
        "spent",
        "superseded",
        "versions",
    )

    def __init__(self, chain: Chain, place: int, now: int, subject: str) -> None:
        self._chain, self._place, self._now, self._subject = chain, place, now, subject
        # Clocks are a pool's own, and slots have a pool each.
        self.serial = next(_serials)
        self.spent = self.superseded = False
        self.versions: list[int] = []

    @property
    def pending(self) -> bool:
        """True if a backward may still ask for what the forward left."""
        return not (self.spent or self.superseded)

    def check(self) -> None:
        """Raises unless everything that the forward left is still there.

        Raises:
            StaleGraph: It was overwritten, by what the error says.
        """
        if self.spent:
            raise self._stale(
                "its backward ran already, and overwrote what it had used",
                "Call the forward again for each backward, or pass retain_graph=True to "
                "make_graphed_callables, which keeps what a second backward needs.",
            )
        if self.superseded:
            raise self._stale(
                "a later forward of the same callable took the memory of this one",
                "Run each backward before the next forward, or pass slots=N for N forwards in "
                "flight; use torch.no_grad() for forwards that need no backward.",
            )
        now, chain = self._now, self._chain
        if chain.lane.clock == now:  # Nothing was launched since.
            return
        if any(one.latest > now for one in chain.lane.chains if one is not chain):
            raise self._stale(
                "graphs of another make_graphed_callables call in the same pool ran in between",
                "Give each call a pool of its own, or graph all of them in one call, as a tuple.",
            )
        if any(last > now for last in chain.last[: self._place]):
            raise self._stale(
                "a callable before it in the tuple ran in between, and their graphs share memory",
                "Run backwards in the reverse order of the tuple, as one backward() over their "
                "chain does; or graph them in separate calls.",
            )

    def _stale(self, met: str, remedy: str) -> StaleGraph:
        return StaleGraph(
            doing="running the backward of", subject=self._subject, met=met, remedy=remedy
        )


_lanes: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()


def lane_of(pool: Hashable, device: torch.device) -> Lane:
    """The lane of the pool with this id: one for as long as anybody holds it."""
    lane: Lane | None = _lanes.get(pool)
    if lane is None:
        lane = _lanes[pool] = Lane(device)
    return lane


def _current_handle(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


def _stream(handle: int, device: torch.device) -> torch.cuda.Stream:
    if handle == 0:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle, device=device)
