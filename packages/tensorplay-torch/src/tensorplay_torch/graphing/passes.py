"""The recorded forward of a callable, and the backwards recorded for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from tensorplay_core import graph
from tensorplay_core.errors import CaptureError, EmptyCapture
from tensorplay_core.protocols import StagePlan
from tensorplay_torch.graphs import CUDAGraph
from tensorplay_torch.resources.storages import key_of

from .candidate import Candidate
from .differentiation import Leaf, gradients, history_begins, leaves_of
from .gradients import Accumulation, buffer_of
from .outputs import Outputs, dense
from .purity import nothing_else, refuse_backward
from .saving import Saving
from .settings import Settings
from .substitution import StandIns

__all__ = [
    "Backward",
    "Forward",
    "known_objects",
    "noted",
    "record_backward",
    "record_forward",
]

Pattern = tuple[bool, ...]
"""Which of the differentiable outputs a backward brings a gradient for."""


class Forward:
    """A recorded forward.

    Attributes:
        graph: What replays it.
        inputs: Its input buffers.
        outputs: What it returned.
        leaves: What gradients can be computed for.
        saving: What it saved for its backward.
        written: Memory that is not its own and that each replay writes.
        compiled: There are compiled regions in it, of which not all is seen.
        run: ``run(inputs)`` copies, launches, and returns copies of the results; with aliases
            nothing, since they are the results.
    """

    def __init__(
        self,
        graph: CUDAGraph,
        inputs: Sequence[torch.Tensor],
        outputs: Outputs,
        leaves: list[Leaf],
        *,
        saving: Saving,
        written: Sequence[torch.Tensor],
        compiled: bool,
        alias: bool,
    ) -> None:
        self.graph, self.inputs, self.outputs, self.leaves = graph, inputs, outputs, leaves
        self.saving, self.written, self.compiled = saving, list(written), compiled
        self.run: StagePlan = graph.stage(inputs, () if alias else outputs.buffers)

    def close(self) -> None:
        """Gives back the graph and its memory. Idempotent."""
        self.graph.close()


class Backward:
    """A recorded backward.

    Attributes:
        graph: What replays it.
        seeds: Buffers for the gradients of the outputs.
        strides: Of each.
        run: ``run(gradients)`` copies, launches, and returns copies of the leaves' gradients.
        places: Number of each leaf that gets a gradient, and which of those it is.
        complete: Every leaf gets one.
        accumulation: What it adds to gradients itself; None if nothing.
    """

    def __init__(
        self,
        graph: CUDAGraph,
        seeds: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        places: Sequence[int | None],
        accumulation: Accumulation | None,
    ) -> None:
        self.graph, self.seeds = graph, seeds
        self.places = [(leaf, place) for leaf, place in enumerate(places) if place is not None]
        self.complete = len(self.places) == len(places)
        self.strides = [seed.stride() for seed in seeds]
        self.accumulation = accumulation
        self.run: StagePlan = graph.stage(seeds, results)


def record_forward(
    candidate: Candidate,
    inputs: Sequence[torch.Tensor],
    *,
    stand_ins: StandIns,
    is_born: Callable[[torch.Tensor], bool],
    used: Mapping[int | None, str],
    written: Sequence[torch.Tensor],
    saves: bool,
    pool: Hashable,
    settings: Settings,
) -> Forward:
    """Captures the callable on ``inputs`` into ``pool``.

    Args:
        candidate: The callable.
        inputs: Buffers for this capture.
        stand_ins: Of the parameters of its modules.
        is_born: True for a leaf that the callable makes itself.
        used: Names of memory that is not its own, by key of its storage.
        written: Of that, what it writes.
        saves: It may save tensors for a backward. ``torch.func.grad`` and the like end a forward in
            which that is looked at.
        pool: Id of a pool.
        settings: How.

    Raises:
        CaptureError: It did what a replay would not do again, or recorded nothing.
    """
    made = CUDAGraph(device=candidate.device)
    for generator in settings.generators:
        made.register_generator_state(generator)
    known = known_objects(candidate, stand_ins)
    since = history_begins()
    saving = Saving({**used, **names_of(candidate)}, {key_of(tensor) for tensor in inputs})
    with noted("capturing the forward of", candidate), nothing_else(candidate):
        with graph(
            made,
            pool,
            capture_error_mode=settings.mode,
            device=candidate.device,
            allow_empty=True,
        ):
            seeing = saving.seeing() if saves and not candidate.compiled else nullcontext()
            with seeing, candidate.runs.noting():
                value = candidate.run(inputs)
            outputs = Outputs(
                value, inputs, known, device=candidate.device, subject=candidate.subject
            )
        del value
        try:
            refuse_backward(candidate, stand_ins, inputs)
            _refuse_empty(made, outputs, candidate, inputs)
            leaves = leaves_of(
                [outputs.computed[n] for n in outputs.differentiable],
                inputs=inputs,
                paths=candidate.arguments.paths,
                stand_ins=stand_ins,
                since=since,
                is_born=is_born,
                subject=candidate.subject,
            )
            return Forward(
                made,
                inputs,
                outputs,
                leaves,
                saving=saving,
                # On the CPU the operations that a replay runs count by themselves.
                written=() if candidate.device.type == "cpu" else written,
                compiled=candidate.compiled,
                alias=settings.alias,
            )
        except BaseException:
            made.close()
            raise


def record_backward(
    candidate: Candidate,
    forward: Forward,
    pattern: Pattern,
    *,
    pool: Hashable,
    settings: Settings,
    retain: bool,
) -> Backward:
    """Captures the backward of ``forward`` for gradients of the outputs that ``pattern`` names.

    Args:
        candidate: The callable.
        forward: Of it.
        pattern: For each differentiable output, whether there is a gradient.
        pool: Id of the pool that the forward is in; None for a capture after replays of it, into a
            pool apart.
        settings: How.
        retain: Leave what it uses for another backward.

    Raises:
        CaptureError: A gradient is sparse, or the backward did what a replay would not do again.
    """
    differentiable = forward.outputs.differentiable
    chosen = [n for n, present in zip(differentiable, pattern, strict=True) if present]
    forward.saving.checks = pool is not None
    with torch.inference_mode(False), torch.no_grad():
        seeds = [torch.zeros_like(forward.outputs.buffers[n]) for n in chosen]
    made = CUDAGraph(device=candidate.device)
    for generator in settings.generators:
        made.register_generator_state(generator)
    leaves = forward.leaves
    buffers = {
        id(leaf): buffer_of(leaf.real)
        for leaf in leaves
        if settings.in_graph and leaf.real is not None
    }
    with (
        noted("capturing the backward of", candidate),
        nothing_else(candidate),
        graph(
            made,
            pool,
            capture_error_mode=settings.mode,
            device=candidate.device,
            allow_empty=True,
        ),
    ):
        computed = [forward.outputs.computed[n] for n in chosen]
        found = gradients(computed, leaves, seeds, retain=retain)
        _refuse_sparse(leaves, found, candidate.subject)
        added = [
            (leaf, gradient)
            for leaf, gradient in zip(leaves, found, strict=True)
            if id(leaf) in buffers and gradient is not None
        ]
        if added:
            torch._foreach_add_([buffers[id(leaf)] for leaf, _ in added], [g for _, g in added])
        results, places = _returned(leaves, found, buffers)
    accumulation = None
    if added:
        parameters = [leaf.real for leaf, _ in added if leaf.real is not None]
        accumulation = Accumulation(
            parameters,
            [buffers[id(leaf)] for leaf, _ in added],
            [leaf.name for leaf, _ in added],
            candidate.subject,
        )
    # The check of its inputs is made for the modes of a backward, which runs outside of autocast.
    with torch.autocast(candidate.device.type, enabled=False):
        return Backward(made, seeds, results, places, accumulation)


def _returned(
    leaves: Sequence[Leaf], found: Sequence[torch.Tensor | None], kept: Mapping[int, object]
) -> tuple[list[torch.Tensor], list[int | None]]:
    """The gradients to return, and for each leaf the place of its own among them."""
    results: list[torch.Tensor] = []
    places: list[int | None] = []
    for leaf, gradient in zip(leaves, found, strict=True):
        if gradient is None or id(leaf) in kept:
            places.append(None)
        else:
            places.append(len(results))
            results.append(dense(gradient.detach()))
    return results, places


def _refuse_sparse(
    leaves: Sequence[Leaf], found: Sequence[torch.Tensor | None], subject: str
) -> None:
    for leaf, gradient in zip(leaves, found, strict=True):
        if gradient is not None and gradient.layout != torch.strided:
            raise CaptureError(
                doing="graphing",
                subject=subject,
                met=f"the gradient of {leaf.name} is sparse, of a size that values decide",
                remedy="Use dense gradients: for nn.Embedding and EmbeddingBag sparse=False.",
            )


@contextmanager
def noted(what: str, candidate: Candidate) -> Iterator[None]:
    """Notes on whatever is raised what was being done."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"while {what} {candidate.subject}")
        raise


def known_objects(candidate: Candidate, stand_ins: StandIns) -> dict[int, Any]:
    """What is handed back as it is, by identity: modules, and for stand-ins their parameters."""
    reached = candidate.reached
    known: dict[int, Any] = {id(buffer): buffer for _, buffer in reached.buffers()}
    known.update((id(one), one) for one in (*reached.modules.values(), *reached.owners.values()))
    for _, parameter in reached.parameters():
        real = stand_ins.real(parameter)
        known[id(parameter)] = parameter if real is None else real
    return known


def names_of(candidate: Candidate) -> dict[int | None, str]:
    """What errors call parameters and buffers, by key of their storage."""
    reached = candidate.reached
    names: dict[int | None, str] = {
        key_of(tensor): f"buffer {name!r}" for name, tensor in reached.buffers()
    }
    names.update((key_of(one), f"parameter {name!r}") for name, one in reached.parameters())
    return names


def _refuse_empty(
    made: CUDAGraph, outputs: Outputs, candidate: Candidate, inputs: Iterable[torch.Tensor]
) -> None:
    if made.node_count or not outputs.buffers:
        return
    given = {key_of(tensor) for tensor in inputs}
    given |= {key_of(tensor) for _, tensor in candidate.reached.parameters()}
    given |= {key_of(tensor) for _, tensor in candidate.reached.buffers()}
    if not all(key_of(buffer) in given for buffer in outputs.buffers):
        raise EmptyCapture(
            doing="graphing",
            subject=candidate.subject,
            met="it returned tensors, and nothing was recorded",
            remedy=f"Compute them anew in each call, on {candidate.device} and on the current "
            "stream: another device's or stream's work is not recorded.",
        )
