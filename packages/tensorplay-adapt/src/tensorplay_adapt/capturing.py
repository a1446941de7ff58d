"""The order of a safe capture: look, save, warm up, put back, capture, put back the rest."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from tensorplay_core.errors import CaptureError, TensorplayError
from tensorplay_core.pool import SharedPool, acquire
from tensorplay_core.runtime import select
from tensorplay_torch import CUDAGraph, graph
from tensorplay_torch.cuda.capture import attempt
from tensorplay_torch.graphing.eligibility import DDP_WARMUP, is_ddp
from tensorplay_torch.numbered import NumberedNode, numbered
from tensorplay_torch.resources.versions import Versions
from tensorplay_torch.tracking.fixed import same
from tensorplay_torch.tracking.ran import Ran, Runs
from tensorplay_torch.tracking.repeats import Repeats
from tensorplay_torch.tracking.surroundings import steady_streams

from .admission import admit_step, subject_of
from .batch import Batch
from .first_use import FirstUse
from .hyperparameters import Hyperparameters, put_values, to_capture, values_of
from .optimizers import create_state
from .purity import nothing_else, refuse_changing
from .reads import Reads, refused, settings_of
from .recipe import Around, Outcome, Recipe
from .snapshot import Before, named_state

__all__ = ["Captured", "Session", "capture_step", "session"]

DRIVER = "torch"
Work: TypeAlias = Callable[[CUDAGraph, Around], Any]
"""What is captured, given the graph and what to enter around the optimizer's step."""


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A captured step.

    Attributes:
        graph: It.
        outcome: Static tensors that a replay fills.
        hyperparameters: Its numbers.
        gradients: The graph's own gradients, by parameter name.
        born: Parameter and key of the optimizer state that was made; a first step is to come.
        seconds: What warm-up and capture took.
        ran: Functions of the user's code that ran in the capture.
    """

    graph: CUDAGraph
    outcome: Outcome
    hyperparameters: Hyperparameters
    gradients: dict[str, torch.Tensor]
    born: tuple[tuple[Any, str], ...]
    seconds: float
    ran: list[Ran]


def capture_step(recipe: Recipe, batch: Batch, *, warmup_steps: int, pool: object) -> Captured:
    """Captures one step over the memory of ``batch``; everything else is as it was.

    Optimizer state that did not exist does afterwards, as a first step finds it.

    Raises:
        CaptureError: The step cannot be captured; see the subclasses.
        ArgumentError: The loss is none, or a parameter has no shape yet.
        Exception: Whatever the module, the loss function or the transform raises.
    """
    began = time.perf_counter()
    admit_step(recipe)
    with session(recipe, pool) as made:
        made.warm_up(batch, warmup_steps, bodies=recipe.features.bodies(recipe.optimizer))
        born = made.settle_state()

        def step(captured: CUDAGraph, around: Around) -> Outcome:
            return recipe.run(batch.static_inputs, batch.static_targets, around)

        captured, outcome, hyperparameters = made.capture(step)
        try:
            made.check_first_use()
        except BaseException:
            captured.close()
            raise
        gradients = _gradients(recipe)
    _synchronize(recipe.device)
    return Captured(
        graph=captured,
        outcome=outcome,
        hyperparameters=hyperparameters,
        gradients=gradients,
        born=born,
        seconds=time.perf_counter() - began,
        ran=made.runs.calls,
    )


class Session:
    """Captures of one recipe; what they change is put back when ``session`` is left.

    Args:
        recipe: The step.
        pool: Where the graph allocates.
        before: Everything as it was.

    Attributes:
        runs: What ran in its captures.
    """

    def __init__(self, recipe: Recipe, pool: SharedPool, before: Before) -> None:
        self._recipe, self._pool, self._before = recipe, pool, before
        self.first_use, self._bound = FirstUse(), list[str]()
        self._repeats = Repeats()
        self._undone = True
        self.runs = Runs()

    def warm_up(self, batch: Batch, steps: int, bodies: int = 0) -> torch.Tensor | None:
        """Takes real steps, and undoes them in memory. What they bound stays for the capture.

        Args:
            batch: What to take them on.
            steps: How many; at least one if the optimizer has no state yet, and as many as
                DistributedDataParallel needs.
            bodies: How deep in conditional bodies parts of the step will stand. Their streams are
                warmed up too: libraries keep their workspaces by stream.

        Returns:
            The last loss; None if no step was taken.
        """
        recipe = self._recipe
        if any(map(is_ddp, recipe.module.modules())):
            steps = max(steps, DDP_WARMUP)
        steps = max(steps, 0 if _has_state(recipe) else 1)
        example = [tensor.clone() for tensor in batch.tensors]
        # They are read on other streams.
        _synchronize(recipe.device)
        loss: torch.Tensor | None = None
        self._undone = False
        try:
            for stream in self._streams(bodies):
                with (
                    select(DRIVER).using_stream(stream, recipe.device),
                    steady_streams(recipe.device),
                    self._before.watching(self.first_use, self._repeats),
                ):
                    number = 0
                    # What a first call made has to be seen at work.
                    while number < steps or (number == 1 and self._before.bound()):
                        number += 1
                        for static, value in zip(batch.tensors, example, strict=True):
                            static.copy_(value)
                        # In the caller's autocast casts would last beyond the step.
                        torch.clear_autocast_cache()
                        self.first_use.begin()
                        self._repeats.begin()
                        updating = partial(self._updating, settings_of(recipe.optimizer))
                        loss = recipe.run(
                            batch.static_inputs, batch.static_targets, updating=updating
                        ).loss
                _synchronize(recipe.device)
            self._bound = self._before.bound()
        except BaseException as error:
            attempt("undoing the warm-up", self.undo, error)
            raise
        self.undo()
        return loss

    def _updating(self, before: dict[tuple[int, str], Any]) -> None:
        """Refuses a step that set entries of groups before its update."""
        self.first_use.pause()
        self._repeats.pause()
        for key, value in settings_of(self._recipe.optimizer).items():
            if key in before and value is not before[key] and not same(before[key], value):
                raise refused(*key)

    def check_first_use(self) -> None:
        """Refuses a step whose first call does other work than later ones, or whose calls differ.

        Raises:
            OperationRefused: It is said what, and what it keeps.
        """
        self.first_use.check(self._recipe, self._bound)
        refuse_changing(self._recipe, self._repeats)

    def undo(self) -> None:
        """Puts back what the warm-up changed in memory, unless that was done to its end."""
        if not self._undone:
            torch.clear_autocast_cache()
            _synchronize(self._recipe.device)
            self._before.restore_memory()
            self._undone = True

    def _streams(self, bodies: int) -> list[object]:
        runtime, device = select(DRIVER), self._recipe.device
        streams = [runtime.side_stream(device, self._pool.pool)]
        if device.type == "cuda":
            driver: Any = runtime.driver
            lane = partial(driver.side_streams.lane, self._pool.pool)
            streams.extend(lane(depth).torch for depth in range(1, bodies + 1))
        return streams

    def settle_state(self) -> tuple[tuple[Any, str], ...]:
        """Gives new optimizer state its first values; returns parameter and key of each entry.

        Raises:
            CaptureError: Nobody knows them.
        """
        born = tuple(self._before.born())
        unknown = create_state(self._recipe.optimizer, born)
        if unknown:
            raise CaptureError(
                doing="capturing",
                subject=subject_of(self._recipe),
                met=f"its first step made state {', '.join(map(repr, unknown))}, and what that is "
                "before the first step nobody but the optimizer knows",
                remedy="Take one step eagerly before the capture, so that the state exists.",
            )
        return born

    def capture(self, work: Work) -> tuple[CUDAGraph, Any, Hyperparameters]:
        """Captures ``work``; returns the graph, what the work returned, and its numbers."""
        optimizer = self._recipe.optimizer
        wanted = values_of(optimizer)
        made, result, numbers = self._captured_with(work, to_capture(wanted))
        if any(True for _ in numbers.refused(wanted)):
            # What stands in for a learning rate of 0 cannot be replaced by it.
            made.close()
            made, result, numbers = self._captured_with(work, wanted)
        numbers.write(wanted)
        return made, result, numbers

    def _captured_with(
        self, work: Work, values: dict[Any, float]
    ) -> tuple[CUDAGraph, Any, Hyperparameters]:
        recipe = self._recipe
        made = CUDAGraph(device=recipe.device)
        for generator in self._before.preservation.generators:
            if generator.device.type == recipe.device.type:
                made.register_generator_state(generator)
        nodes: list[NumberedNode] = []
        reads = Reads(recipe.optimizer, recipe.loss_function, recipe.gradient_transform)
        try:
            with (
                put_values(recipe.optimizer, values),
                reads.noting(),
                nothing_else(recipe, {**self._before.modules, **self._before.objects}),
                graph(made, pool=self._pool.id, capture_error_mode="thread_local"),
                self.runs.noting(),
            ):
                result = work(made, partial(_noting, made, nodes, reads))
            numbers = Hyperparameters(
                recipe.optimizer, made, nodes, values, self._update_alone, reads
            )
        except BaseException:
            made.close()
            raise
        return made, result, numbers

    def _update_alone(self) -> Sequence[NumberedNode]:
        """Captures the optimizer's step, on the gradients that are bound, and throws it away."""
        recipe, nodes = self._recipe, list[NumberedNode]()
        trial, versions = CUDAGraph(device=recipe.device), Versions()
        for tensor in named_state(recipe).values():
            versions.note(tensor)
        try:
            with graph(trial, capture_error_mode="thread_local", track_operands=False):
                recipe.features.unscale(recipe.optimizer)
                recipe.update(partial(_noting, trial, nodes, None))
        finally:
            trial.close()
            versions.restore()
        return nodes


@contextmanager
def session(recipe: Recipe, pool: object) -> Iterator[Session]:
    """While entered, a recipe may be warmed up and captured; what that bound is undone after it.

    If the block raises, optimizer state that is new goes too.
    """
    if recipe.features.scaler is not None:
        # Its tensors are made by the first call.
        recipe.features.scaler.scale(torch.zeros((), device=recipe.device))
    with ExitStack() as undo:
        undo.enter_context(torch.inference_mode(False))
        shared = acquire(select(DRIVER), pool, recipe.device)
        undo.callback(shared.release)
        _synchronize(recipe.device)
        before = Before(recipe)
        undo.callback(before.restore_bindings)
        made = Session(recipe, shared, before)
        try:
            yield made
        except BaseException as error:
            attempt("undoing the warm-up", made.undo, error)
            before.forget_state()
            if not isinstance(error, TensorplayError):
                error.add_note(f"while capturing {subject_of(recipe)}; everything is as before")
            raise


@contextmanager
def _noting(captured: CUDAGraph, nodes: list[NumberedNode], reads: Reads | None) -> Iterator[None]:
    with numbered(captured) as found, reads.update() if reads is not None else nullcontext():
        yield
    nodes.extend(found)


def _has_state(recipe: Recipe) -> bool:
    return all(
        one in recipe.optimizer.state
        for group in recipe.optimizer.param_groups
        for one in group["params"]
        if one.requires_grad
    )


def _gradients(recipe: Recipe) -> dict[str, torch.Tensor]:
    names = {one: name for name, one in named_state(recipe).items()}
    found, without = {}, []
    steered = {one for group in recipe.optimizer.param_groups for one in group["params"]}
    for parameter in recipe.parameters():
        if parameter.grad is not None:
            found[names[parameter]] = parameter.grad
        elif parameter.requires_grad and parameter in steered:
            without.append(names[parameter])
    if without:
        warnings.warn(
            f"no gradient reaches {', '.join(without)}: no step will change them, as none would "
            "eagerly. Leave them out of the optimizer, or let the loss depend on them.",
            RuntimeWarning,
            stacklevel=4,
        )
    return found


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
