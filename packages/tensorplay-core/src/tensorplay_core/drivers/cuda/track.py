"""What a staged launch of the common case touches, laid open for code that is not Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import kernels as ptx
from .addresses import address
from .launchers import Embedded

if TYPE_CHECKING:
    from .executable import CudaExecutable
    from .order import Order
    from .staging import StagedLaunch
    from .work import Work

__all__ = ["FUNCTIONS", "Track", "functions", "track"]

FUNCTIONS = (
    "cuGraphLaunch",
    "cuGraphExecKernelNodeSetParams",
    "cuStreamIsCapturing",
    "cuCtxGetCurrent",
)
"""The driver's functions that a launch on a track calls, in order."""


class Track(NamedTuple):
    """See the module. A launch on it does what ``express`` does, in this order.

    It takes the turn; makes sure that ``dead`` is empty and ``executable`` neither closed nor of
    another ``generation``, that ``order`` has ``native`` as the last launch, on the same stream,
    that the thread has the ``context`` and the stream is not capturing; writes the addresses; sets
    the kernel; launches; gives the turn back. A kernel that has these addresses from the last
    launch on the track need not be set.
    """

    executable: CudaExecutable
    generation: int
    dead: list[str]
    take: Callable[[], object]
    """Takes the turn, or raises IndexError."""
    give: Callable[[None], object]
    order: Order
    native: Any
    """What ``order.last`` is after a launch; ``keep`` is what destroys it."""
    keep: Embedded
    """Its ``sets`` grows whenever a launch off the track sets the copy kernel's parameters."""
    graph: int
    """Handle of the executable to launch; ``node`` is that of its copy kernel."""
    node: int
    function: int
    """Handle of the kernel, launched in ``blocks`` × ``rows`` blocks of ``threads`` threads."""
    blocks: int
    rows: int
    threads: int
    parameters: int
    """Address of the kernel's parameters."""
    table: int
    """Where the addresses go, 8 bytes each: those of the inputs, then those of the results."""
    turn: int
    """The address of a byte, 1 while the turn is there to be taken; 0 if there is none such."""
    special: bool
    """On several devices the handles 0, 1 and 2 mean a stream of whichever is current."""
    context: int
    """Handle of the device's context."""


def track(staged: StagedLaunch) -> Track | None:
    """The track of a plan; None if its launches take more than one copy kernel, or objects."""
    launcher, executable = staged.launcher, staged.executable
    if not isinstance(launcher, Embedded):
        return None
    rail = launcher.rail()
    if rail is None or staged.hot.handle is not int:
        return None
    table = rail.table
    return Track(
        executable=executable,
        generation=staged.generation,
        dead=executable.dead,
        take=staged.turn.take,
        give=staged.turn.give,
        order=staged.order,
        native=rail.native,
        keep=launcher,
        graph=int(rail.native),
        node=int(rail.node),
        function=int(table.function.native),
        blocks=table.grid[0],
        rows=table.grid[1],
        threads=ptx.COPY_THREADS,
        parameters=table.address,
        table=table.start,
        turn=0 if staged.turn.token is None else staged.turn.token.flag,
        special=executable.elsewhere is not None,
        context=staged.context,
    )


def functions(work: Work) -> tuple[int, ...]:
    """The addresses of ``FUNCTIONS``."""
    return tuple(address(work, name) for name in FUNCTIONS)
