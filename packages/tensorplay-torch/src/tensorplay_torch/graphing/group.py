"""Callables graphed by one call: their pools, their captures, and what their calls go to."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Sequence

import torch

from tensorplay_core.errors import CaptureError
from tensorplay_core.pool import SharedPool, acquire
from tensorplay_core.runtime import select
from tensorplay_torch.graphs import DRIVER

from .autograd import TrainingCall
from .calls import Call, bare_call
from .candidate import Candidate
from .lanes import Chain, lane_of
from .passes import Forward
from .session import Session, session
from .settings import Settings
from .slots import Slot
from .watch import Watch

__all__ = ["Entries", "Group"]

BARE = "bare"


class Entries:
    """What the calls of one callable go to.

    Attributes:
        training: Where grad mode is on; None until it is captured.
        bare: Where it is off, and wherever nothing requires grad; None until it is captured.
        watch: Of what the graphs depend on beside their inputs.
        captured: How often it was captured.
        released: It is done with.
    """

    def __init__(self) -> None:
        self.training: Call | None = None
        self.bare: Call | None = None
        self.watch: Watch | None = None
        self.captured = 0
        self.released = False
        self._owned: list[Slot | Forward] = []

    def own(self, *parts: Slot | Forward) -> None:
        """Closes ``parts`` with this."""
        self._owned.extend(parts)

    def clear(self) -> None:
        """Gives back graphs and memory; they may be captured again."""
        self.training = self.bare = self.watch = None
        for part in self._owned:
            part.close()
        self._owned.clear()


class Group:
    """See the module.

    Args:
        candidates: The callables, in the order of their calls.
        settings: How to capture.
        pool: What ``pool=`` takes.

    Attributes:
        candidates: The same.
        entries: What the calls of each go to.

    Raises:
        CaptureError: They are on several devices.
        PoolMismatch: The pool is another device's.
    """

    def __init__(self, candidates: Sequence[Candidate], settings: Settings, pool: object) -> None:
        self.candidates = list(candidates)
        self.entries = [Entries() for _ in candidates]
        self._settings = settings
        self._lock = threading.RLock()
        self._refuse_several_devices()
        self._runtime = select(DRIVER)
        self._pools: dict[Hashable, SharedPool] = {}
        self._end = weakref.finalize(self, _let_go, self._pools)
        self._end.atexit = False
        self._pools[0] = acquire(self._runtime, pool, candidates[0].device)

    def capture(self) -> None:
        """Captures what calls in the present grad mode need.

        Raises:
            CaptureError: A callable cannot be captured.
        """
        if torch.is_grad_enabled():
            self.capture_training()
        else:
            for place in range(len(self.candidates)):
                self.capture_bare(place)

    def capture_training(self) -> None:
        """Captures all callables with their backwards, each slot into a pool of its own.

        Raises:
            CaptureError: One of them cannot be captured.
        """
        with self._lock:
            live = [place for place, one in enumerate(self.entries) if not one.released]
            if all(self.entries[place].training is not None for place in live):
                return
            made: list[Slot | Forward] = []
            # What was captured first into the caller's pool may run between a forward and its
            # backward, so then these have a pool apart.
            keys = [("training", n) if n or self._captured else 0 for n in range(self._slots)]
            try:
                with session(
                    [self.candidates[place] for place in live],
                    differentiate=True,
                    settings=self._settings,
                ) as running:
                    running.warm_up(self._stream(keys[0]))
                    slots = [self._fill(running, live, key, made) for key in keys]
            except BaseException:
                for part in made:
                    part.close()
                raise
            for place in live:
                self._serve(place, [one[place] for one in slots])

    def capture_bare(self, place: int) -> None:
        """Captures the forward of one callable as it is without gradients.

        Raises:
            CaptureError: It cannot be captured.
        """
        with self._lock:
            entries, candidate = self.entries[place], self.candidates[place]
            if entries.bare is not None or entries.released:
                return
            # The results of these graphs are copied out at once and nothing else of them is needed
            # later, so all of a group may share a pool, whatever their order.
            key = BARE if any(one.training is not None for one in self.entries) else 0
            with session([candidate], differentiate=False, settings=self._settings) as running:
                running.warm_up(self._stream(key))
                inputs = candidate.buffers(bare=True)
                forward = running.forward(candidate, inputs, self._pool(key))
            chain = Chain(lane_of(self._pool(key), candidate.device), 1)
            entries.bare = bare_call(
                forward,
                candidate.arguments,
                chain,
                0,
                subject=candidate.subject,
                alias=self._settings.alias,
            )
            entries.own(forward)
            self._captured_once(entries, candidate, ())

    def renew(self, place: int, candidate: Candidate) -> None:
        """Forgets all captures, since something they depend on changed.

        Args:
            place: The callable that is being called.
            candidate: The same, as it is called now.
        """
        with self._lock:
            self.candidates[place] = candidate
            self._refuse_several_devices()
            for entries in self.entries:
                entries.clear()

    def release(self, place: int) -> None:
        """Ends one callable's graphs; with the last of them the pools are given back."""
        with self._lock:
            self.entries[place].released = True
            self.entries[place].clear()
            if all(entries.released for entries in self.entries):
                self._end()

    def _fill(
        self, running: Session, live: Sequence[int], key: Hashable, made: list[Slot | Forward]
    ) -> dict[int, Slot | tuple[Forward, Chain]]:
        """Records one slot of each: forwards in order, backwards in reverse."""
        pool = self._pool(key)
        chain = Chain(lane_of(pool, self.candidates[0].device), len(self.candidates))
        made_before = bool(made)
        forwards: dict[int, Forward] = {}
        for place in live:
            candidate = self.candidates[place]
            # The first slot takes the buffers that the sample call came in.
            inputs = candidate.buffers() if made_before else candidate.arguments.tensors
            forwards[place] = running.forward(candidate, inputs, pool)
            made.append(forwards[place])
        recorded: dict[int, Slot | tuple[Forward, Chain]] = {}
        for place in reversed(live):
            candidate, forward = self.candidates[place], forwards[place]
            if not forward.leaves:
                recorded[place] = (forward, chain)
                continue
            slot = Slot(
                candidate,
                forward,
                chain,
                place,
                settings=running.settings,
                retains=running.retains(candidate),
            )
            made.append(slot)
            slot.record_backward(pool)
            recorded[place] = slot
        return recorded

    def _serve(self, place: int, recorded: Sequence[Slot | tuple[Forward, Chain]]) -> None:
        entries, candidate = self.entries[place], self.candidates[place]
        settings = self._settings
        slots = [one for one in recorded if isinstance(one, Slot)]
        if slots:
            entries.training = TrainingCall(
                slots,
                candidate.arguments,
                device=candidate.device,
                subject=candidate.subject,
                alias=settings.alias,
                in_graph=settings.in_graph,
            )
            entries.own(*slots)
            leaves = slots[0].forward.leaves
        else:
            # Nothing requires grad. Still it may ask for the grad mode, so that calls in the other
            # one have a forward of their own.
            (forward, chain), *spare = (one for one in recorded if isinstance(one, tuple))
            entries.training = bare_call(
                forward,
                candidate.arguments,
                chain,
                place,
                subject=candidate.subject,
                alias=settings.alias,
                strict=True,
            )
            for one, _ in spare:
                one.close()
            entries.own(forward)
            leaves = []
        self._captured_once(
            entries, candidate, [(leaf.name, leaf.real) for leaf in leaves if leaf.real is not None]
        )

    def _captured_once(
        self,
        entries: Entries,
        candidate: Candidate,
        others: Sequence[tuple[str, torch.Tensor]],
    ) -> None:
        entries.captured += 1
        if entries.watch is not None:
            return
        reached = candidate.reached_by_runs()
        known = {id(tensor) for _, tensor in reached.parameters()}
        entries.watch = Watch(
            reached,
            [(name, tensor) for name, tensor in others if id(tensor) not in known],
            hooks_outside=candidate.is_module,
            subject=candidate.subject,
        )

    @property
    def _captured(self) -> bool:
        return any(entries.bare is not None for entries in self.entries)

    @property
    def _slots(self) -> int:
        return self._settings.slots

    def _pool(self, key: Hashable) -> Hashable:
        if key not in self._pools:
            self._pools[key] = acquire(self._runtime, None, self.candidates[0].device)
        return self._pools[key].id

    def _stream(self, key: Hashable) -> object:
        self._pool(key)
        return self._runtime.side_stream(self.candidates[0].device, self._pools[key].pool)

    def _refuse_several_devices(self) -> None:
        first = self.candidates[0]
        for candidate in self.candidates:
            if candidate.device != first.device:
                raise CaptureError(
                    doing="graphing",
                    subject=candidate.subject,
                    met=f"it is on {candidate.device}, and {first.subject} on {first.device}",
                    remedy="Graph the callables of each device by a call of their own: a pool is "
                    "one device's.",
                )


def _let_go(pools: dict[Hashable, SharedPool]) -> None:
    for pool in pools.values():
        pool.release()
    pools.clear()
