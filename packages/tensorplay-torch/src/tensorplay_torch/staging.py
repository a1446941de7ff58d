"""Staged launches: fresh inputs into static buffers, launch, owned results, prepared once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tensorplay_core.errors import GraphStateError, SignatureMismatch
from tensorplay_core.protocols import StagePlan

from .cpu.capture import CpuExecutable
from .cuda.graph import CudaExecutable
from .resources.arrays import overlap
from .resources.bases import Bases, cuda_driver
from .resources.signatures import compile_check, differences, guard_of
from .resources.streams import as_torch_stream

__all__ = ["plan"]

CLOSED = -1
"""The revision of an executable that is closed."""

KINDS = 4
"""How many kinds of inputs a plan learns to accept fast."""


def plan(
    bases: Bases,
    executable: CudaExecutable | CpuExecutable,
    static_inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
) -> StagePlan:
    """A staged launch of ``executable`` on the device that it runs on."""
    if isinstance(executable, CudaExecutable):
        return _CudaPlan(bases, executable, tuple(static_inputs), tuple(results))
    return _Plan(executable, tuple(static_inputs), tuple(results))


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
        self._fast = compile_check(static)
        self._learned: list[Callable[..., bool]] = []

    def __call__(
        self, inputs: Sequence[Any], *, stream: object | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Checks, copies, launches.

        Raises:
            SignatureMismatch: Inputs unlike the static ones; nothing was changed.
            GraphStateError: The graph was closed, or updated since the plan was made.
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
            met="it is closed"
            if now == CLOSED
            else "the graph was updated since this plan was made, and may read other buffers now",
            remedy="Capture again after reset() or close(), and make the plan anew: g.stage(...).",
        )

    def _check(self, inputs: Sequence[Any]) -> bool:
        return self._fast(inputs) or self._check_slowly(inputs)

    def _check_slowly(self, inputs: Sequence[Any]) -> bool:
        """For inputs that the fast check says no to; the next of their kind are accepted faster.

        A kind is inputs under autocast, in inference mode, parameters, and the like.
        """
        if len(inputs) == len(self._static):
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
        with self._executable.turn:
            self._refuse_stale()
            for buffer, given in zip(self._buffers, self._apart(inputs), strict=True):
                if given is not buffer:
                    buffer.copy_(given)
            self._executable.launch(stream)
            return tuple(tensor.clone() for tensor in self._yields)

    def _apart(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs, with clones of those that an earlier copy of this call would overwrite."""
        apart = []
        for place, given in enumerate(inputs):
            if given is self._static[place]:
                given = self._buffers[place]
            elif any(overlap(given, buffer) for buffer in self._buffers[: place + 1]):
                given = given.clone()
            apart.append(given)
        return apart


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
            return direct(inputs)
        if direct is None:
            if not self._dense or self._graph.draws is not False:
                self._check(inputs)
                with self._on(stream):
                    return self._step_by_step(inputs, None)
            self._refuse_stale()
            direct = self._direct = self._make()
        results = direct(inputs, stream=stream)
        if stream is not None:
            self._outlive(inputs, stream)
        return results

    def _make(self) -> StagePlan:
        guard = getattr(self._fast, "guard", None)
        return cuda_driver(self._bases("cuda")).staged(
            self._graph.inner,
            self._buffers,
            self._yields,
            check=self._check if guard is None else self._check_slowly,
            pointer=torch.Tensor.data_ptr,
            allocate=torch.empty_like,
            using=self._on,
            # torch's allocator reuses memory in the order of the stream it was allocated on.
            hold=False,
            guard=guard,
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


def _is_dense(tensor: torch.Tensor) -> bool:
    return torch.empty_like(tensor).stride() == tensor.stride()
