"""The pluggy markers of the contract."""

from __future__ import annotations

import pluggy

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT = "tensorplay"

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks a function of this package as a hook."""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method of a driver or an observer as the implementation of a hook."""
