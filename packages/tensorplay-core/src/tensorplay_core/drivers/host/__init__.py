"""The host driver: plain Python callables as the work, strict where a GPU is.

It is the executable specification of the contract. It runs everywhere, records what it is asked to
without running it, and refuses what CUDA's stream capture refuses, so that a program which passes
here is evidence of a program legal on a GPU. It never imitates speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conditional import Conditionals

__all__ = ["load", "name", "priority", "viability"]

name = "host"
priority = 0


def viability() -> str | None:
    """None: it stands on Python alone."""
    return None


def load() -> Conditionals:
    """A driver with streams, pools and captures of its own."""
    from .conditional import Conditionals

    return Conditionals()
