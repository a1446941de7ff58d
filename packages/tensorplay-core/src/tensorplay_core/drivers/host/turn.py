"""Turns: who may run in some memory. Work that runs may call back, so that waiting is watched.

A launch holds the turn of its pool, and with child graphs in it those of their pools; a capture
that reuses memory of a pool holds that one meanwhile. Whatever runs then in the same thread (a
finaliser, a signal handler, the work itself) may launch too: what would run over the launch under
way, or wait for a thread that waits for this one, is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from tensorplay_core.errors import ReplayError

if TYPE_CHECKING:
    from .streams import ThreadState

__all__ = ["Turn", "Turns", "turn_of"]

_waits = threading.RLock()


class Turn:
    """The turn of one pool.

    Attributes:
        lock: Held by whoever has the turn.
        owner: The thread that runs in it; None while it only holds it, or nobody does. Ctrl-C may
            leave a thread here that runs nothing any more, so only nested launches ask.
    """

    __slots__ = ("lock", "owner")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner: ThreadState | None = None

    @property
    def parts(self) -> tuple[Turn, ...]:
        """Itself."""
        return (self,)

    def wait(self, state: ThreadState) -> None:
        """Takes the lock inside work that runs, where waiting may be for ever.

        Raises:
            ReplayError: The thread that has it waits for this one.
        """
        _wait(self, state)

    def refuse(self, doing: str, subject: str) -> NoReturn:
        """Raises ReplayError: this thread is running in it already."""
        raise ReplayError(
            doing=doing,
            subject=subject,
            met="this thread is in the middle of a replay of it, or of a graph that shares memory "
            "with it, and that would go on with what this one left behind",
            remedy="Replay it after that: not in its own work, a finaliser or a signal handler.",
        )

    @contextmanager
    def taken(self, state: ThreadState, doing: str, subject: str) -> Iterator[None]:
        """This thread's turn to run, while entered.

        Raises:
            ReplayError: It is inside its own turn, or waiting would be for ever.
        """
        nested = state.executing or state.holding
        if nested:
            self.wait(state)
        try:
            with self.lock:
                if nested and self.owner is not None:
                    self.refuse(doing, subject)
                self.owner = state
                try:
                    yield
                finally:
                    self.owner = None
        finally:
            if nested:
                self.lock.release()

    @contextmanager
    def held(self, state: ThreadState, doing: str, subject: str) -> Iterator[None]:
        """Nobody runs in it while entered: for who writes its memory and runs nothing.

        A finaliser or a signal handler may come in between and launch, so waiting is watched here
        as it is inside work that runs.

        Raises:
            ReplayError: It is inside its own turn to run, or waiting would be for ever.
        """
        nested = state.executing or state.holding
        if nested:
            self.wait(state)
        try:
            with self.lock:
                before = self.owner if nested else None
                if before is not None and state.executing:
                    self.refuse(doing, subject)
                self.owner = state
                state.holding += 1
                try:
                    yield
                finally:
                    state.holding -= 1
                    self.owner = before
        finally:
            if nested:
                self.lock.release()


class _Locks:
    """Several locks as one. Whoever waits for one of them holds none of the others.

    Unlike the exit of a lock, that of this object can be interrupted at its very first step.
    """

    __slots__ = ("_locks",)

    def __init__(self, locks: Iterable[threading.RLock]) -> None:
        self._locks = tuple(locks)

    def acquire(self, blocking: bool = True) -> bool:
        locks = self._locks
        while True:
            taken: list[bool] = []
            try:
                # Each in one step of the interpreter, which notes what is taken before an
                # interrupt can come.
                taken.extend(map(methodcaller("acquire", blocking), locks[:1]))
                if taken[0]:
                    taken.extend(map(methodcaller("acquire", False), locks[1:]))
                if all(taken):
                    return True
            except BaseException:
                _release(locks, taken)
                raise
            _release(locks, taken)
            if not blocking:
                return False
            first = taken.index(False)
            locks = locks[first:] + locks[:first]

    def release(self) -> None:
        list(map(methodcaller("release"), self._locks))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _release(locks: tuple[threading.RLock, ...], taken: list[bool]) -> None:
    for lock, held in zip(locks, taken, strict=False):
        if held:
            lock.release()


class Turns(Turn):
    """The turns of a graph and of its child graphs, taken together."""

    __slots__ = ("_parts",)

    lock: _Locks  # type: ignore[assignment]

    def __init__(self, parts: tuple[Turn, ...]) -> None:
        self._parts = parts
        self.lock = _Locks(part.lock for part in parts)

    @property
    def parts(self) -> tuple[Turn, ...]:
        """Of the several pools."""
        return self._parts

    @property
    def owner(self) -> ThreadState | None:
        """The thread that runs in one of them."""
        return next((part.owner for part in self._parts if part.owner is not None), None)

    @owner.setter
    def owner(self, state: ThreadState | None) -> None:
        for part in self._parts:
            part.owner = state


def turn_of(parts: Iterable[Turn]) -> Turn:
    """One turn for several."""
    found = sorted({id(one): one for part in parts for one in part.parts}.values(), key=id)
    return found[0] if len(found) == 1 else Turns(tuple(found))


def _wait(turn: Turn, state: ThreadState) -> None:
    if turn.lock.acquire(blocking=False):
        return
    before = state.waiting
    with _waits:
        state.waiting = turn
        if _for_ever(turn, state):
            state.waiting = before
            raise ReplayError(
                doing="replaying",
                subject="a host graph inside another replay",
                met="another thread is replaying it, and waits for a graph that this thread is "
                "replaying: neither would ever go on",
                remedy="Replay graphs of several threads after each other, not inside the work of "
                "another, a finaliser or a signal handler.",
            )
    try:
        turn.lock.acquire()
    finally:
        state.waiting = before


def _for_ever(turn: Turn, state: ThreadState) -> bool:
    """True if whoever has the turn waits, through whomever, for one that ``state`` has."""
    seen, parts = set[int](), list(turn.parts)
    while parts:
        owner = parts.pop().owner
        if owner is None or owner is state or id(owner) in seen:
            continue
        seen.add(id(owner))
        if owner.waiting is not None:
            if any(part.owner is state for part in owner.waiting.parts):
                return True
            parts += owner.waiting.parts
    return False
