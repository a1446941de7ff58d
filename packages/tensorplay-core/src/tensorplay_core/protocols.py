"""The shapes of what crosses between core and a driver. Drivers bring their own classes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    runtime_checkable,
)

if TYPE_CHECKING:
    from .timeline import Timeline

__all__ = [
    "CAPTURE_MODES",
    "Capture",
    "CaptureMode",
    "CaptureOptions",
    "ConditionalKind",
    "Device",
    "Executable",
    "IN_PLACE",
    "Pool",
    "PoolStatistics",
    "StagePlan",
    "SupportsCudaStream",
    "Template",
    "Update",
    "WorkQueue",
]

CaptureMode: TypeAlias = Literal["global", "thread_local", "relaxed"]
CAPTURE_MODES: tuple[CaptureMode, ...] = ("global", "thread_local", "relaxed")

Device: TypeAlias = Hashable
"""A driver's own name of one device: ``"host"``, an ordinal, a ``torch.device``. Equal if same."""


@runtime_checkable
class SupportsCudaStream(Protocol):
    """Anything that is a stream: torch, CuPy, numba, cuda.core and the host driver give these."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Returns ``(protocol version, handle)``; the version is 0."""
        ...


class ConditionalKind(Enum):
    """What a conditional node does with its bodies."""

    IF = "if"
    """One body runs when the predicate is true; a second one, if there, when it is false."""
    WHILE = "while"
    """The body repeats while the predicate is true."""
    SWITCH = "switch"
    """Body ``i`` runs when the index is ``i``; an index out of range runs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How a capture is to be made, beyond its stream, pool and mode.

    Attributes:
        track_operands: Retain the storages that captured work reads and that were not born in the
            capture, where the driver can see them.
        check_input_liveness: Hold those storages weakly instead and raise at replay if one died.
        enable_annotations: Record ``annotate`` scopes on the nodes captured inside them.
        generators: Random generators, beside the default one, that the graph is to advance.
        timeline: With annotations, where they are recorded. Core does so by ``graph_mark``; a
            driver that knows better where work belongs may say so (``Timeline.place``).
        begun: Where a driver puts the capture as soon as it can be aborted, before it returns it:
            an interrupt on the way back then loses nothing.
    """

    track_operands: bool = True
    check_input_liveness: bool = False
    enable_annotations: bool = False
    generators: tuple[object, ...] = ()
    timeline: Timeline | None = None
    begun: list[Capture] = field(default_factory=list, repr=False, compare=False)


class Pool(Protocol):
    """Memory that graphs allocate from, as a driver gives it.

    Attributes:
        id: Hashable; what ``graph_pool_handle`` and ``CUDAGraph.pool_id`` return.
        device: The device its memory is on.
    """

    @property
    def id(self) -> Hashable:
        """See above."""
        ...

    @property
    def device(self) -> Device:
        """See above."""
        ...


class PoolStatistics(NamedTuple):
    """Memory of one pool, in bytes."""

    reserved_bytes: int
    """Taken from the device and not given back."""
    allocated_bytes: int
    """Handed out to live tensors or buffers."""
    peak_bytes: int
    """The most that ``allocated_bytes`` has been."""
    allocation_count: int
    """How many live allocations there are."""


class Capture(Protocol):
    """A running capture, or one body inside it.

    Attributes:
        device: The device whose work is captured.
        stream: Handle of the stream that is captured (for a body: the body's own stream).
        parent: The capture this one is a body of, or None.
    """

    @property
    def device(self) -> Device:
        """See above."""
        ...

    @property
    def stream(self) -> int:
        """See above."""
        ...

    @property
    def parent(self) -> Capture | None:
        """See above."""
        ...


class Template(Protocol):
    """A captured graph that is not yet executable. Immutable.

    Attributes:
        node_count: Nodes at its top level.
    """

    @property
    def node_count(self) -> int:
        """See above."""
        ...

    def retain(self, owned: object) -> None:
        """Keeps ``owned`` alive as long as this template or an executable made from it."""
        ...

    def raw(self) -> Any:
        """The native graph (an ``int`` handle on CUDA), for other libraries."""
        ...

    def close(self) -> None:
        """Destroys it. Idempotent. An executable made from it stays whole."""
        ...


class Executable(Protocol):
    """A graph that runs.

    ``launch(stream=None)`` is an attribute, a closure the driver builds once: None is the current
    stream; a stream object or an int handle is that stream. It enqueues and returns. It is the
    whole hot path, safe from any thread, so it makes no hook call and allocates nothing.

    Where there is a ``taken(stream, doing)``, it is a context manager: this thread's turn to copy
    into buffers of the graph and then to call what it yields, which launches. No other launch and
    no staged call of the graph comes between; in the midst of the thread's own it raises
    ReplayError. Without it only calls that copy by hand are kept apart from each other.
    """

    launch: Callable[..., None]

    def upload(self, stream: object | None = None) -> None:
        """Moves what the first launch would have to move. Ordered on ``stream``."""
        ...

    def raw(self) -> Any:
        """The native executable (an ``int`` handle on CUDA), for other libraries."""
        ...

    def close(self) -> None:
        """Waits for launches under way, then destroys it. Idempotent."""
        ...


class StagePlan(Protocol):
    """Fresh inputs into static buffers, launch, results out: prepared once, called often.

    Calling it with as many inputs as static buffers checks them strictly, copies, launches, and
    returns owned copies of the results it was made for (an empty tuple when there are none).
    """

    def __call__(self, inputs: Sequence[Any], *, stream: object | None = None) -> tuple[Any, ...]:
        """Checks, copies, launches. Raises SignatureMismatch before anything is changed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What became of an attempt to refresh an executable in place.

    Attributes:
        in_place: True if the same executable now runs the new work.
        reason: Why it could not, in the driver's terms; ``""`` when it could.
    """

    in_place: bool
    reason: str = ""


IN_PLACE = Update(in_place=True)
"""What ``graph_update`` returns of an executable that is refreshed."""


class WorkQueue(Protocol):
    """A driver on which plain Python callables are the work: the host driver.

    A layer that records for it (torch on a CPU) needs no more than this.
    """

    def submit(
        self,
        work: Callable[[], object],
        *,
        name: str,
        kind: str = "kernel",
        attributes: dict[str, Any] | None = None,
        writes: Sequence[object] = (),
        keep: object = None,
    ) -> None:
        """Runs ``work`` on the current stream, or records it if that stream is capturing.

        ``writes`` are the objects it changes (how a while body is seen to write its predicate);
        ``keep`` lives as long as the graph does.
        """
        ...
