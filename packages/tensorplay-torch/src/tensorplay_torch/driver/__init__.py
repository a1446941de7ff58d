"""The torch driver's card: cheap to import, torch itself only when it is asked about."""

from __future__ import annotations

import re

__all__ = ["FLOOR", "load", "name", "priority", "viability"]

name = "torch"
priority = 20
FLOOR = (2, 11)
"""Oldest torch that has what the driver needs: ``keep_graph`` graphs and pools by stream."""


def viability() -> str | None:
    """None if torch can be driven here, else the reason, with what would help."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported ({error}): pip install 'torch>={FLOOR[0]}.{FLOOR[1]}'"
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if match is None or tuple(map(int, match.groups())) < FLOOR:
        return (
            f"torch {torch.__version__} is too old: "
            f"pip install --upgrade 'torch>={FLOOR[0]}.{FLOOR[1]}'"
        )
    if torch.version.hip is not None:
        return (
            f"torch {torch.__version__} is a ROCm build (HIP {torch.version.hip}), whose graphs "
            "have neither conditional nodes nor the CUDA driver's calls: "
            "use a CUDA or a CPU build"
        )
    return None


def load() -> object:
    """The plugin: every hook of the four nouns, on CUDA devices and on the CPU."""
    from .conditional import Conditionals

    return Conditionals()
