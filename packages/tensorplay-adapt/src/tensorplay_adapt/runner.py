"""What stands behind a step object: captures, the checks of each call, and its launches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from tensorplay_core.errors import GraphStateError, SignatureMismatch, StaleGraph
from tensorplay_torch.compiled import written
from tensorplay_torch.graphing.lanes import Lane, reentered
from tensorplay_torch.tracking.ran import Ran

from .admission import subject_of
from .batch import Batch
from .birth import Birth, undamped
from .capturing import Captured, capture_step
from .changes import Changes
from .distributed import close_before_groups
from .episodes import Episodes
from .first_step import FirstStep
from .hyperparameters import Hyperparameters
from .launches import Launches
from .optimizers import damped_keys
from .recipe import Outcome, Recipe
from .report import Report, report
from .snapshot import Snapshot, preserved
from .until import Until, UntilLoop
from .verify import Verification, compare_with_eager

__all__ = ["Runner"]


class Runner:
    """One step, as it is captured now.

    Args:
        recipe: What the step does.
        on_change: ``"raise"`` or ``"recapture"``.
        warmup_steps: Before each capture.
        pool: Of each capture.

    Attributes:
        captured: The last capture; None for somebody else's graph.
        graph: What is launched.
        batch: The static batch.
        metrics: Of the last call.
        transformed: The same, what the gradient transform returned.
        captures: How many there were.
        closed: True from ``close`` on.
        publish: Gives what to call after each capture, if it is still there.
    """

    batch: Batch
    graph: Any
    outcome: Outcome

    def __init__(
        self,
        recipe: Recipe,
        *,
        on_change: str = "raise",
        warmup_steps: int = 0,
        pool: object = None,
    ) -> None:
        self.recipe = recipe
        self._recaptures = on_change == "recapture"
        self._warmup_steps, self._pool = warmup_steps, pool
        self.lane = Lane(recipe.device)
        self.lock = threading.RLock()
        self.captured: Captured | None = None
        self.metrics: dict[str, torch.Tensor] = {}
        self.transformed: Any = None
        self.captures = 0
        self.closed = False
        # What was broken off, and so has to be done anew before anything else.
        self._broken = ""
        self.publish: Callable[[], Callable[[], object] | None] = lambda: None
        self._loop: UntilLoop | None = None
        self._episodes: Episodes | None = None
        # On the CPU a replay counts the versions of what it writes, as eager work does.
        self._counts = recipe.device.type != "cpu"

    def adopt(self, batch: Batch, graph: Any, static_loss: torch.Tensor) -> None:
        """Launches somebody else's graph."""
        fixed = Hyperparameters.fixed(self.recipe.optimizer, graph)
        self._bind(batch, graph, Outcome(static_loss, {}, None), fixed)
        self._first = FirstStep(self.recipe, self._changes, None)

    def capture(self, inputs: Any, targets: Any) -> None:
        """Captures the step for batches like this one, in place of an earlier capture.

        Raises: as ``capture_step``.
        """
        with torch.inference_mode(False):
            self._capture(inputs, targets)

    def _capture(self, inputs: Any, targets: Any) -> None:
        recipe = self.recipe
        batch = Batch(inputs, targets).owned(recipe.device)
        captured = capture_step(recipe, batch, warmup_steps=self._warmup_steps, pool=self._pool)
        try:
            born, optimizer = captured.born, recipe.optimizer
            birth = Birth(optimizer, born) if born else Birth.of(optimizer)
            damped = damped_keys(optimizer) if birth else []
            if captured.hyperparameters.frozen.intersection(damped):
                raise undamped(subject_of(recipe))
            if born and recipe.features.taken is not None:
                recipe.features.taken.zero_()
            before, self._broken = self.captured, "capture"
            self._bind(
                batch, captured.graph, captured.outcome, captured.hyperparameters, captured.ran
            )
            captured.ran.clear()
            self._first = FirstStep(recipe, self._changes, birth)
            self.captured, self._broken = captured, ""
        except BaseException:
            captured.graph.close()
            if self._broken and self.captured is not None:
                self._changes.doubt()
            raise
        if before is not None:
            before.graph.close()
        self.captures += 1
        close_before_groups(self, captured.graph)
        # Learning rate schedules warn if they step first; of the steps to come they see none.
        recipe.optimizer._opt_called = True  # type: ignore[attr-defined]
        publish = self.publish()
        if publish is not None:
            publish()

    def _bind(
        self,
        batch: Batch,
        graph: Any,
        outcome: Outcome,
        hyperparameters: Hyperparameters,
        ran: Sequence[Ran] = (),
    ) -> None:
        recipe = self.recipe
        self._launches = Launches(graph, batch.tensors, outcome, recipe.device)
        self.batch, self.graph, self.outcome = batch, graph, outcome
        self._changes = Changes(recipe, hyperparameters, ran)
        self._dependencies, self._groups = self._changes.dependencies, self._changes.groups
        self._written = [one.detach() for one in self._dependencies.written]
        # What each call calls, within reach.
        self._take, self._run, self._bare = batch.take, self._launches.run, self._launches.bare
        self._drop_others()

    def _drop_others(self) -> None:
        for other in (self._loop, self._episodes):
            if other is not None:
                other.close()
        self._loop = self._episodes = None

    def __call__(self, inputs: Any, targets: Any) -> torch.Tensor:
        """One step; returns the loss, detached and the caller's own.

        Raises:
            SignatureMismatch: The batch is not like the one captured; nothing was changed.
            StaleGraph: What the step depends on is not what it was; nothing was changed.
            GraphStateError: It is closed, or this thread is in the midst of a call of the step.
        """
        lane = self.lane
        if lane.held():
            raise reentered(subject_of(self.recipe))
        if self._first.to_come or not self._changes.unchanged():
            self._catch_up(inputs, targets)
        try:
            leaves = self._take(inputs, targets)
            if self._first.to_come:
                self._first.launch()
            with lane.lock:
                lane.follow()
                results = self._run(leaves)
        except SignatureMismatch as error:
            return self._unlike(error, inputs, targets)
        if self._counts:
            written(self._written)
        if self._first.to_come:
            self._first.taken()
        if not self._bare:
            self.metrics, self.transformed = self._launches.built(results)
        loss: torch.Tensor = results[0]
        return loss

    def _catch_up(self, *batch: Any) -> None:
        """Follows the hyper-parameters; anything else that changed is raised, or captured anew."""
        if self._caught_up():
            return
        if not self._recaptures:
            raise self._stale()
        self.capture(*(batch or self.batch.copy()))

    def _caught_up(self) -> bool:
        if self.closed:
            self._refuse("it is closed", "Capture a step anew, or close it when all is done.")
        if self._broken == "reset":
            self._refuse("a reset was broken off", "Reset it: step.reset_to(snapshot).")
        if self._broken:
            return False
        if self._first.to_come:
            self._first.look()
            if self._first.to_come and self._changes.unchanged():
                return True
        return self._changes.follow(self._first.followed)

    def _unlike(self, error: SignatureMismatch, inputs: Any, targets: Any) -> torch.Tensor:
        mismatch = self.batch.mismatch(inputs, targets)
        if not mismatch.differences:
            raise error
        if not self._recaptures:
            raise mismatch from None
        self.capture(inputs, targets)
        return self(inputs, targets)

    def stale(self) -> tuple[str, ...]:
        """What changed since the capture that a call would refuse, one line each."""
        broken = (f"a {self._broken} was broken off",) if self._broken else ()
        return ("it is closed",) if self.closed else (*broken, *self._changes.said())

    def _stale(self) -> StaleGraph:
        return StaleGraph(
            doing="calling",
            subject=subject_of(self.recipe),
            met="; ".join(self.stale()),
            remedy="Capture a step anew after such a change, or pass on_change='recapture'. To "
            "keep the graph, change values in place: p.copy_(v), module.load_state_dict(state).",
        )

    def _refuse_within(self) -> None:
        if self.lane.held():
            raise reentered(subject_of(self.recipe))

    def ready(self) -> None:
        """Makes sure that other launches of this step may be made now.

        Raises:
            StaleGraph: What the step depends on is not what it was.
            GraphStateError: It is closed.
        """
        if self._first.to_come or not self._changes.unchanged():
            self._catch_up()

    def until(self, inputs: Any, targets: Any, tolerance: float, max_steps: int) -> Until:
        """See ``CudaGraphAdaptationStep.until``."""
        with self.lock:
            self._refuse_within()
            if self._first.to_come or not self._changes.unchanged():
                self._catch_up(inputs, targets)
            if self._first.to_come and self._first.overridden:
                self._refuse(
                    "the first step of SGD with dampening is unlike the others",
                    "Take it by a plain call: step(inputs, targets).",
                )
            if self._loop is None:
                with torch.inference_mode(False):
                    loop = UntilLoop(self.recipe, self.batch, self._warmup_steps, self._pool)
                graphs = [*self._groups.graphs, loop.hyperparameters]
                # At once: one without the other would compute with numbers of the past.
                self._groups.graphs, self._loop = graphs, loop
            try:
                leaves = self.batch.take(inputs, targets)
                if self._first.to_come:
                    self._first.launch()
                with self.lane.entered(subject_of(self.recipe)):
                    result = self._loop(leaves, tolerance, max_steps)
            except SignatureMismatch:
                raise self.batch.mismatch(inputs, targets) from None
            if self._counts:
                written(self._written)
            if self._first.to_come:
                self._first.taken()
            return result

    def snapshot(self) -> Snapshot:
        """See ``CudaGraphAdaptationStep.snapshot``."""
        with self.lock, torch.inference_mode(False):
            self._refuse_within()
            self.ready()
            with self.lane.entered(subject_of(self.recipe)):
                return Snapshot(self._dependencies.state(), fresh=self._first.to_come)

    def reset_to(self, snapshot: Snapshot) -> None:
        """See ``CudaGraphAdaptationStep.reset_to``."""
        with self.lock, torch.inference_mode(False):
            self._refuse_within()
            again = self._broken == "reset"
            if again:
                self._broken = ""
            try:
                self.ready()
            finally:
                if again:
                    self._broken = "reset"
            if self._episodes is None:
                self._episodes = Episodes(self._dependencies.state(), self.recipe.device)
            with self.lane.entered(subject_of(self.recipe)):
                saved = self._episodes.saved_in(snapshot)
                if again or snapshot.fresh is not self._first.to_come:
                    self._changes.doubt()
                    self._broken = "reset"
                self._episodes.fill(saved)
            if self._counts:
                written(self._written)
            self._first.put(to_come=snapshot.fresh)
            self._broken = ""

    def verify(self, steps: int) -> Verification:
        """See ``CudaGraphAdaptationStep.verify``."""
        with self.lock, self._back_where_it_was():
            batch, fresh = self.batch.copy(), self._first.to_come
            return compare_with_eager(self.recipe, lambda: self(*batch), batch, steps, fresh=fresh)

    def report(self) -> Report:
        """See ``CudaGraphAdaptationStep.report``."""
        if self.captured is None:
            self._refuse("somebody else captured the graph", "Make it by capture().")
        with self.lock, self._back_where_it_was(), preserved(self.recipe) as before:
            captured, batch = self.captured, self.batch.copy()
            with before.watching():
                self.recipe.run(*batch)
            return report(captured, self.recipe, batch, lambda: self(*batch))

    @contextmanager
    def _back_where_it_was(self) -> Iterator[None]:
        self.ready()
        fresh, results = self._first.to_come, (self.metrics, self.transformed)
        try:
            yield
        finally:
            self.metrics, self.transformed = results
            self._first.put(to_come=fresh)

    def close(self) -> None:
        """Ends the graphs that were captured here. Idempotent."""
        with self.lock:
            self.closed = True
            self._changes.doubt()
            self._drop_others()
            if self.captured is not None:
                self.captured.graph.close()

    def _refuse(self, met: str, remedy: str) -> NoReturn:
        raise GraphStateError(
            doing="using", subject=subject_of(self.recipe), met=met, remedy=remedy
        )
