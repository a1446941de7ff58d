"""Staged launches: fresh inputs into static buffers, launch, owned results, prepared once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tensorplay_core.errors import ArgumentTypeError, GraphStateError, SignatureMismatch
from tensorplay_core.protocols import StagePlan
from tensorplay_core.signature import a_type

from ._private import PRIVATE
from .compiled import parts
from .cpu.capture import CpuExecutable
from .cuda.graph import CudaExecutable
from .resources.arrays import empties, extent, overlap, unlike_memory
from .resources.bases import Bases, cuda_driver
from .resources.devices import index_of
from .resources.signatures import compile_check, differences, guard_of, plain
from .resources.storages import key_of
from .resources.streams import as_torch_stream
from .resources.turns import CLOSED

__all__ = ["plan"]

KINDS = 4
"""How many kinds of inputs a plan learns to accept fast."""


def plan(
    bases: Bases,
    executable: CudaExecutable | CpuExecutable,
    static_inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
) -> StagePlan:
    """A staged launch of ``executable`` on the device that it runs on.

    Raises:
        ArgumentTypeError: A buffer is no tensor of plain memory, or they come in no sequence.
    """
    static = _buffers("static_inputs", static_inputs)
    for place, one in enumerate(static):
        if any(size > 1 and not step for size, step in zip(one.shape, one.stride(), strict=True)):
            raise _no_buffers(f"static_inputs[{place}]", "expanded: its elements share memory")
    yields = _buffers("results", results)
    if isinstance(executable, CudaExecutable):
        return _CudaPlan(bases, executable, static, yields)
    return _Plan(executable, static, yields)


class _Plan:
    """Copies, launches and clones, one after the other: on a CPU a crossing costs nothing."""

    def __init__(
        self,
        executable: CudaExecutable | CpuExecutable,
        static: tuple[torch.Tensor, ...],
        results: tuple[torch.Tensor, ...],
    ) -> None:
        self._executable, self._static = executable, static
        self._revision = executable.revision
        # Aliases without autograd history: writing them is no operation that autograd follows.
        self._buffers = [tensor.detach() for tensor in static]
        self._yields = [tensor.detach() for tensor in results]
        self._starts, self._ends = _spans(self._buffers)
        self._storages = [buffer.untyped_storage() for buffer in self._buffers]
        self._places = self._where()
        self._fast = compile_check(static)
        self._learned: list[Callable[..., bool]] = []

    def __call__(
        self, inputs: Sequence[Any], *, stream: object | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Checks, copies, launches.

        Raises:
            SignatureMismatch: Inputs unlike the static ones; nothing was changed.
            GraphStateError: The graph was closed, or updated since the plan was made.
            ReplayError: This thread is in the midst of a call.
        """
        self._check(inputs)
        return self._step_by_step(inputs, stream)

    def _refuse_stale(self) -> None:
        """Raises GraphStateError before anything is written that the graph would not read."""
        now = self._executable.revision
        if now == self._revision:
            return
        raise GraphStateError(
            doing="staging inputs for",
            subject=repr(self._executable),
            met="the graph is closed, or nobody held it any more"
            if now == CLOSED
            else "the graph was updated since this plan was made, and may read other buffers now",
            remedy="Capture again after reset() or close(), and make the plan anew: g.stage(...).",
        )

    def _check(self, inputs: Sequence[Any]) -> bool:
        try:
            return self._fast(inputs) or self._check_slowly(inputs)
        except TypeError:
            self._refuse_unless_collection(inputs)
            raise

    def _refuse_unless_collection(self, inputs: object) -> None:
        if not hasattr(inputs, "__len__"):
            met = f"inputs: captured {len(self._static)} tensors, got {type(inputs).__name__}"
            raise SignatureMismatch(
                differences=[met], subject=repr(self._executable), doing="staging inputs for"
            ) from None

    def _check_slowly(self, inputs: Sequence[Any]) -> bool:
        """For inputs that the fast check says no to; the next of their kind are accepted faster.

        A kind is inputs under autocast, in inference mode, parameters, and the like.
        """
        if isinstance(inputs, torch.Tensor):
            met = f"inputs: captured {len(self._static)} tensors, got one tensor by itself"
            raise SignatureMismatch(
                differences=[met], subject=repr(self._executable), doing="staging inputs for"
            )
        if len(inputs) == len(self._static) and plain(inputs):
            for guard in self._learned:
                if guard(*inputs):
                    return True
        found = differences(self._static, inputs)
        if found:
            raise SignatureMismatch(
                differences=found, subject=repr(self._executable), doing="staging inputs for"
            )
        if len(self._learned) < KINDS and (learned := guard_of(inputs)) is not None:
            self._learned.append(learned)
        return True

    @torch.no_grad()
    def _step_by_step(
        self, inputs: Sequence[torch.Tensor], stream: object
    ) -> tuple[torch.Tensor, ...]:
        with self._executable.taken(stream, "staging inputs for") as launch:
            self._refuse_stale()
            for buffer, given in zip(self._buffers, self._apart(inputs), strict=True):
                if given is not buffer:
                    buffer.copy_(given)
            launch()
            return tuple(tensor.clone() for tensor in self._yields)

    def _apart(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs, with clones of those that an earlier copy of this call would overwrite."""
        apart = []
        if (places := self._where()) != self._places:
            # A storage was resized, and the graph goes where it is now.
            self._starts, self._ends = _spans(self._buffers)
            self._places = places
        for place, given in enumerate(inputs):
            if given is self._static[place] and _is_in_place_of(given, self._buffers[place]):
                given = self._buffers[place]
            elif self._touches(given) and any(
                overlap(given, buffer) for buffer in self._buffers[: place + 1]
            ):
                given = given.clone()
            apart.append(given)
        return apart

    def _where(self) -> list[int]:
        # Storages may be asked inside a capture as well, which refuses to tell tensors' addresses.
        return [storage.data_ptr() for storage in self._storages]

    def _touches(self, given: torch.Tensor) -> bool:
        """False if the memory of ``given`` is none of any buffer's."""
        if not given.numel():
            return False
        start, end = extent(given)
        nearest = bisect_left(self._starts, end) - 1
        return nearest >= 0 and self._ends[nearest] > start


class _CudaPlan(_Plan):
    """One crossing into the CUDA driver, once it is known that torch need not be there.

    A graph that draws random numbers, and results with gaps, go step by step through torch.
    """

    def __init__(
        self,
        bases: Bases,
        executable: CudaExecutable,
        static: tuple[torch.Tensor, ...],
        results: tuple[torch.Tensor, ...],
    ) -> None:
        super().__init__(executable, static, results)
        self._bases, self._graph = bases, executable
        self._dense = all(map(_is_dense, (*static, *results)))
        self._direct: StagePlan | None = None
        self._parts, self._current = parts(), PRIVATE["current_raw_stream"].value

    def __call__(
        self, inputs: Sequence[Any], *, stream: object | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Checks, copies, launches.

        Raises:
            SignatureMismatch: Inputs unlike the static ones; nothing was changed.
            GraphStateError: The graph was closed, or updated since the plan was made.
            CaptureError: The stream is capturing.
        """
        direct = self._direct
        if direct is not None and stream is None:
            try:
                return direct(inputs)
            except TypeError:
                self._refuse_unless_collection(inputs)
                raise
        if direct is None:
            if not self._dense or self._graph.draws is not False:
                self._check(inputs)
                with self._on(stream):
                    results = self._step_by_step(inputs, None)
                if stream is not None:
                    self._outlive(inputs, stream)
                return results
            self._refuse_stale()
            self._refuse_unless_collection(inputs)
            made = self._make()
            self._refuse_stale()  # An update meanwhile: the plan would be of its work.
            direct = self._direct = made
        results = direct(inputs, stream=stream)
        if stream is not None:
            self._outlive(inputs, stream)
        return results

    def _make(self) -> StagePlan:
        guard = guard_of(self._static)
        return cuda_driver(self._bases("cuda")).staged(
            self._graph.inner,
            self._buffers,
            self._yields,
            # Who is served by a guard has asked the fast check already.
            check=self._check if guard is None or self._parts is not None else self._check_slowly,
            pointer=torch.Tensor.data_ptr,
            allocate=torch.empty_like,
            using=self._on,
            # torch's allocator reuses memory in the order of the stream it was allocated on.
            hold=False,
            guard=guard,
            plain=plain,
            fresh=empties(self._yields, self._graph.device),
            compiled=None if self._parts is None or self._current is None else self._compiled,
        )

    def _compiled(self, track: Any, functions: tuple[int, ...], long_way: StagePlan) -> StagePlan:
        assert self._parts is not None, "it is asked for where they are"
        assert self._current is not None, "it is asked for where that is found"
        return self._parts.Rail(
            long_way,
            self._buffers,
            self._yields,
            track,
            functions,
            self._current,
            index_of(self._graph.device),
        )

    def _on(self, stream: object) -> AbstractContextManager[Any]:
        if stream is None:
            return nullcontext()
        return torch.cuda.stream(as_torch_stream(self._bases, stream, self._graph.device))

    def _outlive(self, inputs: Sequence[torch.Tensor], stream: object) -> None:
        """Keeps inputs that the caller drops from being reused while another stream reads them."""
        reader = as_torch_stream(self._bases, stream, self._graph.device)
        for given in inputs:
            given.record_stream(reader)


def _buffers(role: str, given: object) -> tuple[torch.Tensor, ...]:
    if isinstance(given, torch.Tensor) or not isinstance(given, Iterable):
        raise _no_buffers(role, f"it is {a_type(given)}")
    found = tuple(given)
    for place, one in enumerate(found):
        met = unlike_memory(one) if isinstance(one, torch.Tensor) else a_type(one)
        if met:
            raise _no_buffers(f"{role}[{place}]", f"it is {met}")
    return found


def _no_buffers(subject: str, met: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        doing="preparing staged launches with",
        subject=subject,
        met=met,
        remedy="Pass a list of the graph's tensors, of plain strided memory: g.stage([x], [y]).",
    )


def _spans(buffers: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
    """Where the memory of ``buffers`` begins and ends, in order, what overlaps as one."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(extent(one) for one in buffers if one.numel()):
        if ends and start < ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _is_in_place_of(given: torch.Tensor, buffer: torch.Tensor) -> bool:
    """False if a static buffer was given other memory since: its contents have to be copied."""
    return (
        key_of(given) == key_of(buffer)
        and given.storage_offset() == buffer.storage_offset()
        and given.stride() == buffer.stride()
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    return torch.empty_like(tensor).stride() == tensor.stride()
