"""How much memory the driver holds in all, and what marks a piece of it as in use."""

from __future__ import annotations

import threading
from collections import deque

from tensorplay_core.errors import PoolExhausted

__all__ = ["Ledger", "Plain", "Storage"]


class Ledger:
    """How many bytes the driver holds, and how many it may.

    Attributes:
        limit_bytes: The most it may hold; None is no limit.
    """

    def __init__(self) -> None:
        self.limit_bytes: int | None = None
        self._held = 0
        self._returned: deque[int] = deque()
        # Reentrant: a signal handler may allocate in the middle of an allocation.
        self._lock = threading.RLock()

    def take(self, nbytes: int, purpose: str) -> None:
        """Counts ``nbytes`` more.

        Raises:
            PoolExhausted: The limit does not allow them.
        """
        with self._lock:
            held = self._settled()
            if self.limit_bytes is not None and held + nbytes > self.limit_bytes:
                raise PoolExhausted(
                    doing="allocating",
                    subject=f"{nbytes} bytes for {purpose}",
                    met=f"{held} of {self.limit_bytes} bytes are held",
                    remedy="Close graphs, let buffers go, or raise limit_bytes of the host driver.",
                )
            self._held += nbytes

    def give(self, nbytes: int) -> None:
        """Counts ``nbytes`` less. Safe in a finalizer."""
        self._returned.append(nbytes)

    def held(self) -> int:
        """Bytes held now."""
        with self._lock:
            return self._settled()

    def _settled(self) -> int:
        while self._returned:
            returned = self._returned.popleft()
            self._held -= returned
        return self._held


class Storage:
    """What buffers over the same memory share; the memory is free when it is collected.

    Attributes:
        born: Serial number of the capture it was allocated in, 0 outside any.
    """

    __slots__ = ("__weakref__", "born")

    def __init__(self, born: int = 0) -> None:
        self.born = born


class Plain(Storage):
    """Memory outside any pool."""

    __slots__ = ("_ledger", "_nbytes")

    def __init__(self, ledger: Ledger, nbytes: int, born: int = 0) -> None:
        super().__init__(born)
        ledger.take(nbytes, "a buffer outside any pool")
        self._ledger, self._nbytes = ledger, nbytes

    def __del__(self) -> None:
        # An allocation that the ledger refused has none to give back to.
        if hasattr(self, "_ledger"):
            self._ledger.give(self._nbytes)
