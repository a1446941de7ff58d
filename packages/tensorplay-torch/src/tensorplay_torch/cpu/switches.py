"""Switches of torch that are the whole process's, for replays that need them as they were captured.

Replays of several threads that want a switch alike share it, and the last of them puts it back; one
that wants it otherwise waits for them. What was found is put back then, and not what another replay
had set meanwhile.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tensorplay_core.errors import ReplayError
from tensorplay_torch._private import required

__all__ = ["Held", "Wanted", "holders", "settings"]

LOOK = 0.05
"""Seconds between two looks whether other replays are done, which tell of each end themselves."""
PATIENCE = 5.0
"""Seconds after which a replay inside another is taken to wait for one that waits for it."""


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
# Weakly: an interrupt may keep one from leaving, which then ends with the frame that made it.
_held: list[weakref.ref[Held]] = []
_waiting: list[Held] = []
_found: dict[int, Any] = {}
"""What switches were before the first of those that hold them, by place."""


class Held:
    """Switches as ``wanted``, from ``enter`` to ``leave``.

    Args:
        wanted: How they are to be.
    """

    __slots__ = ("__weakref__", "_entered", "_ref", "_thread", "_wanted")

    def __init__(self, wanted: Wanted) -> None:
        self._wanted, self._entered = wanted, False

    def enter(self) -> None:
        """Sets them, once no replay of another thread wants them otherwise.

        Raises:
            ReplayError: One does, this is inside a replay that holds some, and it takes too long.
        """
        self._thread, self._ref = threading.get_ident(), weakref.ref(self)
        with _changed:
            if _held or _waiting:
                self._wait()
            self._entered = True
            _held.append(self._ref)
            for place, value in enumerate(self._wanted):
                if value is not None:
                    _set(place, value)

    def _wait(self) -> None:
        began, holds = time.monotonic(), any(one._thread == self._thread for one in holders())
        try:
            _waiting.append(self)
            while any(map(self._clashes, holders())) or (not holds and self._comes_later()):
                if holds and time.monotonic() - began > PATIENCE:
                    raise ReplayError(
                        doing="replaying",
                        subject="a graph inside another replay",
                        met="it was captured with other switches of torch (default dtype, mkldnn, "
                        "deterministic algorithms, threads) than one that another thread replays, "
                        "which may be waiting for this one",
                        remedy="Capture both alike, or replay them after each other.",
                    )
                _changed.wait(LOOK)
        finally:
            _waiting.remove(self)
            _changed.notify_all()

    def _comes_later(self) -> bool:
        """True if somebody waits already who wants them otherwise: else he might wait for ever."""
        return any(map(self._clashes, _waiting[: _waiting.index(self)]))

    def leave(self) -> None:
        """Puts back those that nobody else holds. Idempotent."""
        if not self._entered:
            return
        with _changed:
            if self._ref in _held:
                _held.remove(self._ref)
            if _found:
                _settle()
            if _waiting:
                _changed.notify_all()
            self._entered = False

    def __del__(self) -> None:
        if getattr(self, "_entered", False):
            self.leave()

    def _clashes(self, other: Held) -> bool:
        return other._thread != self._thread and any(
            one is not None and two is not None and one != two
            for one, two in zip(self._wanted, other._wanted, strict=True)
        )


def holders() -> list[Held]:
    """Those that hold switches, in order."""
    return [one for ref in _held if (one := ref()) is not None]


def _set(place: int, value: Any) -> None:
    now = READ[place]()
    if now != value:
        _found.setdefault(place, now)
        WRITE[place](value)


def _settle() -> None:
    """Sets each switch that was changed as the last who holds it wants it, or as it was found."""
    held = holders()
    for place in list(_found):
        wanted = [one._wanted[place] for one in held if one._wanted[place] is not None]
        if wanted:
            _set(place, wanted[-1])
        else:
            WRITE[place](_found[place])
            del _found[place]
