"""Modes on torch's two mode stacks, taken off from wherever they stand.

torch pops blindly: whichever mode is on top goes, whoever asked. A capture may end while a mode
that was entered inside it is still on, or after one that was entered before it was left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import overrides
from torch.utils import _python_dispatch as dispatch

from tensorplay_core.errors import CaptureError

__all__ = ["DISPATCH", "FUNCTION", "ModeStack"]


FLAGS = ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode")
"""What torch's dispatch modes set when they are entered, and put back when they are left."""


@dataclass(frozen=True, slots=True)
class ModeStack:
    """One of the stacks.

    Attributes:
        kind: What its modes are called.
        modes: Those that are on, outermost first.
        push: Puts one on top.
        pop: Takes the top one off.
    """

    kind: str
    modes: Callable[[], list[Any]]
    push: Callable[[Any], None]
    pop: Callable[[], Any]

    def enter(self, mode: Any) -> None:
        """Puts ``mode`` on top, and notes in its ``depth`` and ``flags`` what ``leave`` needs."""
        before, mode.flags = self.modes(), _flags()
        mode.depth = len(before)
        try:
            mode.__enter__()
        except BaseException:
            self._reduce(mode, mode.depth, before)
            mode.depth = None
            raise

    def leave(self, mode: Any) -> None:
        """Takes ``mode`` off, if it is on. An interrupt does not keep it on.

        Raises:
            CaptureError: It was not the top one. It is off all the same, and only it.
        """
        depth = mode.depth
        if depth is None:
            return
        stack = None
        try:
            stack = self.modes()
            if len(stack) == depth + 1 and stack[depth] is mode:  # As it should be.
                mode.__exit__(None, None, None)
                if not depth:
                    _nothing_on()
                return
            self._take_off(mode, depth)
            if any(one is mode or _is_fleeting(one) for one in self.modes()[depth:]):
                # An interrupt came between an entry for a single call and its end.
                self._reduce(mode, depth, self.modes())
        except BaseException as error:
            if not isinstance(error, Exception):
                self._reduce(mode, depth, self.modes() if stack is None else stack)
            raise
        finally:
            mode.depth = None

    def _reduce(self, mode: Any, depth: int, stack: list[Any]) -> None:
        """Makes this ``stack`` without ``mode``."""
        rest = [one for one in stack[depth:] if one is not mode and not _is_fleeting(one)]
        while len(self.modes()) > depth:
            self.pop()
        self._push_back(rest[::-1])
        if not rest:
            _set_flags(mode.flags)

    def _take_off(self, mode: Any, depth: int) -> None:
        above = []
        while len(self.modes()) > depth and self.modes()[-1] is not mode:
            above.append(self.pop())
        if len(self.modes()) <= depth:
            # One from below popped ours in place of itself, so its own entry is the one left over.
            stale = self.pop() if depth else mode
            self._push_back(above)
            raise self._crossed(stale, "was left inside the capture, and took the capture's off")
        if above:
            _hand_over(mode, above[-1])
        mode.__exit__(None, None, None)
        self._push_back(above)
        if not self.modes():
            _nothing_on()
        if above:
            raise self._crossed(above[-1], "was entered inside the capture and is still on")

    def _push_back(self, modes: list[Any]) -> None:
        for mode in reversed(modes):
            self.push(mode)

    def _crossed(self, mode: Any, met: str) -> CaptureError:
        return CaptureError(
            doing="ending",
            subject="a capture",
            met=f"the {self.kind} {type(mode).__name__} {met}",
            remedy="Nest them: leave inside the capture what was entered inside it, and after it "
            "what was entered before it.",
        )


def _is_fleeting(mode: Any) -> bool:
    """True for a mode of this package's that is on for a single call only."""
    return getattr(mode, "fleeting", False)


def _hand_over(mode: Any, above: Any) -> None:
    """Lets ``above`` restore, when it is left, what ``mode`` would have restored."""
    for name, saved in vars(mode).items():
        theirs = getattr(above, name, None)
        if isinstance(saved, deque) and isinstance(theirs, deque) and saved and theirs:
            theirs[-1] = saved[-1]


def _nothing_on() -> None:
    """Puts right what torch says of a thread whose last mode is off.

    It notes in variables of the process whether a mode is on, and each mode puts back what it found
    there: of two threads that enter and leave by turns, one puts back what the other had set.
    """
    if dispatch._get_current_dispatch_mode_stack():
        return
    for name in FLAGS:
        if hasattr(dispatch, name):
            setattr(dispatch, name, False)


def _flags() -> dict[str, Any]:
    return {name: getattr(dispatch, name) for name in FLAGS if hasattr(dispatch, name)}


def _set_flags(flags: dict[str, Any]) -> None:
    for name, value in flags.items():
        setattr(dispatch, name, value)


DISPATCH = ModeStack(
    "dispatch mode",
    dispatch._get_current_dispatch_mode_stack,
    dispatch._push_mode,
    dispatch._pop_mode,
)
FUNCTION = ModeStack(
    "function mode",
    overrides._get_current_function_mode_stack,
    overrides._push_mode,
    overrides._pop_mode,
)
