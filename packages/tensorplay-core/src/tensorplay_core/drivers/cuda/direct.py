"""Launches without a frame of Python's, where the library for that is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorplay_core.compiled import launch_type

from .addresses import address

if TYPE_CHECKING:
    from .conditions import Call
    from .executable import CudaExecutable
    from .work import Work

__all__ = ["direct"]


def direct(
    work: Work,
    executable: CudaExecutable,
    launch: Callable[..., None],
    rebind: Callable[[Call], None],
    failed: Callable[[Any, Any], None],
) -> tuple[Callable[..., None], Callable[[Call], None]]:
    """``launch`` and ``rebind`` of an executable, in C while it launches by the driver's own call.

    What else a launch may have to go through (other devices, order among executables, liveness,
    a framework's own replay, a closed graph) is rebound to, and Python's.
    """
    made_of, hot, token = launch_type(), work.hot, executable.turn.token
    if made_of is None or token is None or hot.handle is not int:
        return launch, rebind
    made = made_of(
        launch,
        int(executable.native),
        token,
        getattr(executable.current, "function", executable.current),
        executable.target,
        failed,
        address(work, "cuGraphLaunch"),
    )
    made.plain = executable.plain()

    def rebound(call: Call) -> None:
        made.plain = False
        rebind(call)
        made.plain = call is hot.launch

    return made, rebound
