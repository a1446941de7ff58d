"""From which driver version on each capability is there, as ``1000 * major + 10 * minor``."""

from __future__ import annotations

from tensorplay_core.errors import UnsupportedByDriver

__all__ = [
    "BASE",
    "CONDITIONALS",
    "ELSE",
    "EMPTY_BODIES",
    "NODE_PARAMETERS",
    "SWITCH",
    "TOOLS_IDS",
    "require",
    "spelled",
]

BASE = 12040
"""Captures with edge data, and kernels that tell their parameters."""

CONDITIONALS = 12040
"""If and while nodes. (Their calls came with 12.3, their use is promised from 12.4.)"""

SWITCH = 12080
"""Switch nodes."""

EMPTY_BODIES = 12080
"""A body without nodes; replaying one hangs on older drivers."""

ELSE = 13000
"""One if node with two bodies. It came with 12.8, but 12.8 and 12.9 could move the nodes of a child
graph from one body to the other at instantiation."""

NODE_PARAMETERS = 13020
"""Reading back the bodies of a conditional node that somebody else made."""

TOOLS_IDS = 13010
"""The numbers by which profilers know nodes and executables."""


def spelled(version: int) -> str:
    """``12040`` as ``"12.4"``."""
    return f"{version // 1000}.{version % 1000 // 10}"


def require(version: int, floor: int, what: str, *, doing: str) -> None:
    """Raises UnsupportedByDriver if the installed driver is older than ``floor``."""
    if version < floor:
        raise UnsupportedByDriver(
            driver="cuda",
            hook=f"{what} (they need CUDA driver {spelled(floor)}, this is {spelled(version)})",
            doing=doing,
            remedy="Update the NVIDIA driver.",
        )
