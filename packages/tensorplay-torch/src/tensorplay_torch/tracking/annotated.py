"""Annotations of backward passes: their work belongs to the scopes that their forward ran in.

Autograd numbers its nodes in the order in which a thread makes them. So the numbers at which scopes
were opened and left tell of each node that a backward pass evaluates which scope it is from, on
whatever thread it is evaluated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from tensorplay_core.timeline import Timeline
from tensorplay_torch._private import PRIVATE

__all__ = ["BackwardScopes"]

UNNUMBERED = 2**64 - 1
"""What autograd says of nodes that accumulate into ``.grad``: they are no scope's."""


class BackwardScopes:
    """A listener of ``CaptureDispatch``; made in the thread that captures, when that begins.

    Work of a forward outside all scopes, of one ahead of the capture, and the accumulation into
    ``.grad`` belong to the scope that ``backward()`` is called in. So does what runs without an
    operation: kernels of a region that ``torch.compile`` compiled. Of a second backward pass
    through the first, on a GPU, the scopes are not known.

    Args:
        timeline: Of the capture.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._evaluated = PRIVATE["current_autograd_node"].value
        self._number = PRIVATE["autograd_number"].value
        self._begins: list[int] = []
        self._scopes: list[str] = []
        self._away = False
        if self._evaluated is not None and self._number is not None:
            self._turn(timeline.scope)
            timeline.follow(self._turn)

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Puts what is captured next where it belongs."""
        if self._away:  # The last operation failed.
            self.after(func, args, kwargs, None)
        node = self._evaluated() if self._evaluated is not None else None
        if node is None:
            return
        scope = self._scope_of(node._sequence_nr())
        if scope:
            self._away = True
            self._timeline.place(scope, phase="backward")

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """What is captured next belongs to the scope that is open."""
        if self._away:
            self._away = False
            self._timeline.resume()

    def _turn(self, scope: str) -> None:
        assert self._number is not None
        number = self._number()
        if self._begins and self._begins[-1] == number:
            self._scopes[-1] = scope
        else:
            self._begins.append(number)
            self._scopes.append(scope)

    def _scope_of(self, number: int) -> str:
        place = bisect_right(self._begins, number) - 1
        return self._scopes[place] if place >= 0 and number != UNNUMBERED else ""
