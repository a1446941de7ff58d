"""The launch of a graph in C, for those who build it; everything works without it.

``python -m tensorplay_core.compiled`` builds it for the Python that runs it, with a C compiler and
setuptools. It is found and used from then on; ``TENSORPLAY_COMPILED=0`` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from .places import library, look_for, why_not

__all__ = ["BUILD", "SOURCE", "Launch", "launch_type", "place", "summary"]

BUILD = "python -m tensorplay_core.compiled"
SOURCE = Path(__file__).parent / "launch.c"


class Launch(Protocol):
    """A launch: called with a stream, or without for the current one."""

    plain: bool
    """False lets every call go to Python's launch."""

    def __call__(self, stream: object = None) -> None:
        """Launches."""


LaunchType = Callable[
    [
        Callable[..., None],
        int,
        Callable[[], object],
        Callable[[None], object],
        Callable[[], object],
        Callable[[object], Any],
        Callable[[Any, Any], None],
        int,
    ],
    Launch,
]
"""``(python, native, take, give, current, target, failed, function)``.

``python`` is the launch in Python, which serves what is unusual; ``native`` the handle of the
executable; ``take`` and ``give`` those of its turn; ``current`` returns the current stream or its
handle, ``target`` the handle of a stream; ``failed(code, handle)`` serves a launch that the driver
refused; ``function`` is the address of ``cuGraphLaunch``.
"""


def place() -> Path:
    """Where the library is, or would be."""
    return library("launch", [SOURCE])


_module: Any = look_for(f"{__name__}.launch", place, BUILD)


def launch_type() -> LaunchType | None:
    """The type of launches; None if the library is not there or switched off."""
    return None if _module is None else _module.Launch


def summary() -> str:
    """One line on it, for ``describe``."""
    return "in use" if _module is not None else why_not(place, BUILD)
