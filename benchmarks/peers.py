"""Peers that a goal does not need: measured where they can run, else named with the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timing import Contender


def gather(makers: Mapping[str, Callable[[], Contender]]) -> tuple[dict[str, Contender], str]:
    """Those that could be made, and a sentence for the note about those that could not."""
    made, absent = {}, []
    for label, make in makers.items():
        try:
            made[label] = make()
        except Exception as error:
            # Whatever another library lacks here is no reason to lose our own numbers.
            lines = str(error).strip().splitlines() or [""]
            absent.append(f"without {label} ({type(error).__name__}: {lines[0]})")
            print(absent[-1], file=sys.stderr)
    return made, "; ".join(absent)
