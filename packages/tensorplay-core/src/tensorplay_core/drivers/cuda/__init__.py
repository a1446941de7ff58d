"""The CUDA driver: graphs, pools and conditional nodes of NVIDIA GPUs, on ``cuda.bindings``.

It needs no toolkit and no compiler, and stands beside whatever framework issues the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conditional import Conditionals

__all__ = ["load", "name", "priority", "viability"]

name = "cuda"
priority = 10


def viability() -> str | None:
    """None where there are bindings, an NVIDIA driver new enough, and a GPU; else what lacks."""
    from .contexts import obstacle

    return obstacle()


def load() -> Conditionals:
    """The driver, initialised; contexts are taken up as devices are used."""
    from .conditional import Conditionals

    return Conditionals()
