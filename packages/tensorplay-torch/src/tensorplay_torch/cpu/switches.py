"""Switches of torch that are the whole process's, for replays that need them as they were captured.

Replays of several threads that want a switch alike share it, and the last of them puts it back; one
that wants it otherwise waits for them. What was found is put back then, and not what another replay
had set meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tensorplay_core.errors import ReplayError
from tensorplay_torch._private import required

__all__ = ["Held", "Wanted", "settings"]

PATIENCE = 0.05
"""Seconds between two looks whether other replays are done, which tell of each end themselves."""


class Wanted(NamedTuple):
    """How switches are to be; None is as they are."""

    mkldnn: bool | None = None
    deterministic: tuple[bool, bool] | None = None
    """The second says whether what is not deterministic only warns."""
    threads: int | None = None
    dtype: torch.dtype | None = None


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


READ: tuple[Callable[[], Any], ...] = (
    lambda: torch.backends.mkldnn.enabled,
    _deterministic,
    torch.get_num_threads,
    torch.get_default_dtype,
)
WRITE: tuple[Callable[[Any], object], ...] = (
    lambda on: required("set_mkldnn", "replaying on the CPU")(on),
    lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
    torch.set_num_threads,
    torch.set_default_dtype,
)


def settings() -> Wanted:
    """The switches of torch, apart from its modes, that decide how a CPU operation computes."""
    return Wanted(*(read() for read in READ))


_changed = threading.Condition(threading.RLock())
_held: list[Held] = []
_waiting: set[int] = set()
_found: dict[int, Any] = {}
"""What switches were before the first of those that hold them, by place."""


class Held:
    """Switches as ``wanted``, from ``enter`` to ``leave``.

    Args:
        wanted: How they are to be.
    """

    __slots__ = ("_thread", "_wanted")

    def __init__(self, wanted: Wanted) -> None:
        self._wanted, self._thread = wanted, threading.get_ident()

    def enter(self) -> None:
        """Sets them, once no replay of another thread wants them otherwise.

        Raises:
            ReplayError: One does, and waits itself, which may be for what this thread holds.
        """
        mine = self._thread
        with _changed:
            while clashing := list(filter(self._clashes, _held)):
                holds = any(one._thread == mine for one in _held)
                if holds and any(one._thread in _waiting for one in clashing):
                    raise ReplayError(
                        doing="replaying",
                        subject="a graph inside another replay",
                        met="it was captured with other switches of torch (default dtype, mkldnn, "
                        "deterministic algorithms, threads) than one that another thread replays",
                        remedy="Capture both alike, or replay them after each other.",
                    )
                try:
                    _waiting.add(mine)
                    _changed.wait(PATIENCE)
                finally:
                    _waiting.discard(mine)
            _held.append(self)
            _settle()

    def leave(self) -> None:
        """Puts back those that nobody else holds. Idempotent."""
        with _changed:
            if self in _held:
                _held.remove(self)
            _settle()
            _changed.notify_all()

    def _clashes(self, other: Held) -> bool:
        return other._thread != self._thread and any(
            one is not None and two is not None and one != two
            for one, two in zip(self._wanted, other._wanted, strict=True)
        )


def _settle() -> None:
    """Sets each switch as the last who holds it wants it, or as it was found."""
    for place, (read, write) in enumerate(zip(READ, WRITE, strict=True)):
        wanted = [one._wanted[place] for one in _held if one._wanted[place] is not None]
        if not wanted:
            if place in _found:
                write(_found[place])
                del _found[place]
        elif (now := read()) != wanted[-1]:
            _found.setdefault(place, now)
            write(wanted[-1])
