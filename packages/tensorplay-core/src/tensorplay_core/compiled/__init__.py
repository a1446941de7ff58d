"""Launches and short looks at graphs in C, for those who build it; everything works without it.

``python -m tensorplay_core.compiled`` builds it for the Python that runs it, with a C compiler and
setuptools. It is found and used from then on; ``TENSORPLAY_COMPILED=0`` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from .places import library, look_for, why_not

__all__ = [
    "BUILD",
    "SOURCES",
    "Launch",
    "Token",
    "counter",
    "functions",
    "launch_type",
    "make_token",
    "place",
    "refresher",
    "summary",
]

BUILD = "python -m tensorplay_core.compiled"
SOURCES = Path(__file__).parent


class Launch(Protocol):
    """A launch: called with a stream, or without for the current one."""

    plain: bool
    """False lets every call go to Python's launch."""

    def __call__(self, stream: object = None) -> None:
        """Launches."""


class Token(Protocol):
    """What a turn is taken with."""

    flag: int
    """The address of a byte: 1 while it is there. For code that holds the GIL."""

    def take(self) -> None:
        """Takes it.

        Raises:
            IndexError: Somebody has it.
        """

    def give(self, nothing: None, /) -> None:
        """Brings it back; harmless where it is there."""


LaunchType = Callable[
    [
        Callable[..., None],
        int,
        Token,
        Callable[[], object] | tuple[int, int],
        Callable[[object], Any],
        Callable[[Any, Any], None],
        int,
    ],
    Launch,
]
"""``(python, native, token, current, target, failed, function)``.

``python`` is the launch in Python, which serves what is unusual; ``native`` the handle of the
executable; ``token`` that of its turn; ``current`` returns the current stream or its handle, or is
the address of a C function ``intptr_t (int)`` that returns the handle, and its argument;
``target`` returns the handle of a stream; ``failed(code, handle)`` serves a launch that the driver
refused; ``function`` is the address of ``cuGraphLaunch``.
"""


def place() -> Path:
    """Where the library is, or would be."""
    return library("launch", [*SOURCES.glob("*.h"), *SOURCES.glob("*.c")])


_module: Any = look_for(f"{__name__}.launch", place, BUILD)


def launch_type() -> LaunchType | None:
    """The type of launches; None if the library is not there or switched off."""
    return None if _module is None else _module.Launch


def make_token() -> Token | None:
    """A token that the launch in C can take without a call; None if there is no such launch."""
    return None if _module is None else _module.Token()


def counter() -> Callable[[int, int], int] | None:
    """``(function, graph)``: how many nodes a graph has, -1 if the driver does not say.

    ``function`` is the address of ``cuGraphGetNodes``. None if the library is not there.
    """
    return None if _module is None else _module.count


def functions() -> Callable[[int, int, int, int], tuple[int, ...] | None] | None:
    """``(get_nodes, get_type, get_parameters, graph)``: what the nodes of a graph run.

    The first three are the addresses of ``cuGraphGetNodes``, ``cuGraphNodeGetType`` and
    ``cuGraphKernelNodeGetParams``. For a kernel it is the handle of its function, for another node
    -1 less its kind. None for the whole where a node holds a graph, or the driver does not say.
    There is no such function if the library is not there.
    """
    return None if _module is None else _module.functions


def refresher() -> Callable[[int, int, int, int, int, int], int | None] | None:
    """``(get_current, exchange, update, context, executable, graph)``: updates an executable.

    The first three are the addresses of ``cuCtxGetCurrent``, ``cuThreadExchangeStreamCaptureMode``
    and ``cuGraphExecUpdate``. It returns the code of the last, which it calls in relaxed mode; None
    where another context is current, and nothing was done. There is no such function if the library
    is not there.
    """
    return None if _module is None else _module.refresh


def summary() -> str:
    """One line on it, for ``describe``."""
    return "in use" if _module is not None else why_not(place, BUILD)
