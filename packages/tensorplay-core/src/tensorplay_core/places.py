"""Where in the user's code a call came from: what an error names."""

from __future__ import annotations

import sys

__all__ = ["user_place"]

_PLUMBING = frozenset({"pluggy", "contextlib", "functools", "threading"})


def user_place() -> str:
    """``"file:line"`` of the nearest frame outside the library, ``""`` if there is none."""
    frame = sys._getframe(1)
    while True:
        module = frame.f_globals.get("__name__", "")
        if not _inside(module):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if frame.f_back is None:
            return ""
        frame = frame.f_back


def _inside(module: str) -> bool:
    package = module.partition(".")[0]
    if package in _PLUMBING:
        return True
    # The suites that a wheel ships are users like any other.
    return package.startswith("tensorplay_") and ".testing." not in module
