"""Several listeners of a capture as one, as most operations give most of them nothing to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorplay_torch.tracking.operands import DeviceListener
from tensorplay_torch.tracking.operations import described

from .drawing import Drawing
from .foreign import ForeignWork

__all__ = ["Seen"]


class Seen:
    """A listener that does what these do one after the other.

    Most operations are plain: they write nothing, wait for nothing and draw nothing. To ask each
    listener for each of them would take longer than what they have to do.
    """

    def __init__(self, operands: DeviceListener, foreign: ForeignWork, drawing: Drawing) -> None:
        self._operands, self._foreign, self._drawing = operands, foreign, drawing
        self._look, self._pass_over = foreign.look, foreign.pass_over
        self._see, self._leaf = operands.operands.see, operands.bindings.leaf

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """``func`` is about to run."""
        operation, drawing = described(func), self._drawing
        if operation is None or not operation.plain or drawing.bodies:
            for listener in (self._operands, self._foreign, drawing):
                listener.before(func, args, kwargs)
            return
        drawing.last = func
        if not operation.nodeless:
            self._look()

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """It has run."""
        operation = described(func)
        if operation is None or not operation.nodeless:
            self._pass_over()
        if operation is None or not operation.plain:
            self._operands.after(func, args, kwargs, result)
        else:
            self._see(func, args, kwargs, result, self._leaf)
