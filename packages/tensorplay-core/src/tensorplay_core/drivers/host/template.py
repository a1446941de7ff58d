"""A captured graph that is not executable yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorplay_core.errors import GraphStateError

from .holdings import Holdings
from .recording import Recording

if TYPE_CHECKING:
    from .memory import Pool

__all__ = ["Template"]


class Template:
    """What a capture recorded.

    Attributes:
        node_count: Nodes at its top level.
        holdings: What it and its executables keep alive.
        pool: The pool of the capture, None if it had none.
    """

    def __init__(self, recording: Recording, holdings: Holdings, pool: Pool | None) -> None:
        self.node_count = len(recording.nodes)
        self.holdings = holdings
        self.pool = pool
        self._recording: Recording | None = recording

    def __repr__(self) -> str:
        state = "" if self._recording is not None else ", closed"
        return f"<host template of {self.node_count} nodes{state}>"

    def recording(self, doing: str) -> Recording:
        """What was recorded.

        Raises:
            GraphStateError: The template is closed.
        """
        if self._recording is None:
            raise GraphStateError(
                doing=doing,
                subject=repr(self),
                met="it is closed",
                remedy="Capture again, or close it later.",
            )
        return self._recording

    def retain(self, owned: object) -> None:
        """Keeps ``owned`` alive as long as this template or an executable made from it."""
        self.holdings.keep(owned)

    def raw(self) -> Recording:
        """The recorded nodes.

        Raises:
            GraphStateError: The template is closed.
        """
        return self.recording("reading the nodes of")

    def close(self) -> None:
        """Lets the recording go. Idempotent. An executable made from it stays whole."""
        self._recording = None
        self.holdings = Holdings()
        self.pool = None
