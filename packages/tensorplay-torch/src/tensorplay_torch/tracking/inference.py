"""Inference mode that is entered inside a capture and left after it, or the other way round.

To leave it sets this thread's dispatch back to what it was at the entry. If the capture's mode was
put on between, that is on the stack afterwards, but no operation reaches it any more; if it was
taken off between, dispatch looks for a mode that is not there, and every operation fails.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

from tensorplay_core.errors import CaptureError

__all__ = ["Inference"]

KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
"""What dispatch includes in a thread that has dispatch modes on."""


class Inference:
    """This thread's inference mode; made when a capture begins to look."""

    def __init__(self) -> None:
        self._before = torch.is_inference_mode_enabled()

    def crossing(self, *, looks: bool = True) -> CaptureError | None:
        """What a capture is to end with whose own modes are still on; None if all is nested.

        Torch works all the same after what was entered inside is left.

        Args:
            looks: The capture has modes of its own on.
        """
        now = torch.is_inference_mode_enabled()
        if now == self._before and (not looks or _reached()):
            return None
        entered = _reached()
        if entered:
            _mend()
        kind = f"inference mode ({now if entered else self._before})"
        met = "was entered inside the capture and is still on"
        return CaptureError(
            doing="ending",
            subject="a capture",
            met=f"{kind} {met if entered else 'was left inside the capture, which saw no more'}",
            remedy="Nest them: leave inside the capture what was entered inside it, and after it "
            "what was entered before it. A generator that is suspended inside its block leaves "
            "that when it ends.",
        )


class _Mended:
    """What an ``inference_mode`` holds while it is on: leaving it fits the modes that are on."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)
        if not dispatch._get_current_dispatch_mode_stack():
            for key in KEYS:
                torch._C._dispatch_tls_set_dispatch_key_included(key, False)


def _reached() -> bool:
    """False if modes are on that dispatch does not ask."""
    if not dispatch._get_current_dispatch_mode_stack():
        return True
    return all(map(torch._C._dispatch_tls_is_dispatch_key_included, KEYS))


def _mend() -> None:
    """Looks for who may have noted dispatch while the capture's mode was on."""
    for one in gc.get_objects():
        if type(one) is torch.inference_mode:
            guard = vars(one).get("_inference_mode_context")
            if guard is not None and not isinstance(guard, _Mended):
                vars(one)["_inference_mode_context"] = _Mended(guard)
