"""``CudaGraphAdaptationStep``: a whole training step, forward to update, in one launch."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Self, SupportsIndex

import torch
from torch import nn

from tensorplay_core.errors import ArgumentError, ArgumentTypeError, GraphStateError
from tensorplay_core.signature import named
from tensorplay_torch import CUDAGraph

from .arguments import check_own_graph, checked_recipe, device_of
from .batch import Batch
from .recipe import GradientTransform, Recipe, TensorLoss
from .report import Report
from .runner import Runner
from .snapshot import Snapshot
from .until import Until
from .verify import Verification

__all__ = ["CudaGraphAdaptationStep"]


@dataclass(eq=False, repr=False)
class CudaGraphAdaptationStep:
    """Forward, loss, backward, gradient transform and optimizer update, captured once.

    ::

        step = CudaGraphAdaptationStep.capture(model, optimizer, x, y, loss_function)
        for x, y in batches:
            loss = step(x, y)

    Each call is what the same step would be eagerly, bit for bit: gradients from zero, the update
    with what the optimizer's groups hold at that moment (learning rate schedules work as ever),
    random numbers from the same stream. ``.grad`` of the parameters is left alone.

    Made by its constructor, the class launches a graph of one's own: it checks the batch, copies
    it into the static tensors, replays, and returns a copy of the loss.

    Args:
        module: The module that the graph trains.
        optimizer: The optimizer of its parameters.
        static_inputs: The tensor (or nested tensors) that the graph reads inputs from, a live
            alias.
        static_targets: The same for targets.
        graph: The captured step; a ``torch.cuda.CUDAGraph`` will do, at its own speed.
        static_loss: The 0-d tensor that the graph writes the loss to, a live alias.

    Raises:
        ArgumentTypeError: One of them is not of that type.
        ArgumentError: The loss is not 0-d, or inputs and targets hold no tensor.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    static_inputs: Any
    static_targets: Any
    graph: CUDAGraph
    static_loss: torch.Tensor

    def __post_init__(self) -> None:
        check_own_graph(self.module, self.optimizer, self.graph, self.static_loss)
        batch = Batch(self.static_inputs, self.static_targets)
        batch.check_any()
        recipe = Recipe(
            module=self.module,
            optimizer=self.optimizer,
            loss_function=_unknown,
            gradient_transform=None,
            device=self.static_loss.device,
        )
        self._runner = Runner(recipe)
        self._runner.adopt(batch, self.graph, self.static_loss)

    @classmethod
    def capture(
        cls,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        example_inputs: Any,
        example_targets: Any,
        loss_function: TensorLoss,
        *,
        warmup_steps: int = 3,
        gradient_transform: GradientTransform | None = None,
        microbatches: int = 1,
        autocast: torch.dtype | None = None,
        scaler: torch.amp.GradScaler | None = None,
        skip_nonfinite: bool = False,
        ema: nn.Module | None = None,
        ema_decay: float = 0.999,
        on_change: Literal["raise", "recapture"] = "raise",
        pool: object = None,
        device: object = None,
    ) -> Self:
        """Captures a step for batches like the example, and consumes none of it.

        Parameters, buffers, optimizer state, ``.grad``, scaler, random states and modes end as
        they were, in place, also if it raises. Optimizer state that did not exist ends as a first
        eager step would find it. Then call the step with the example: that is its first step.

        Args:
            module: Called with the inputs as its one argument. All of it is on one device.
            optimizer: Of parameters on that device. On CUDA its step must count there
                (``capturable=True``, for Adagrad ``fused=True``); on the CPU SGD, Adadelta,
                RMSprop, Rprop, Muon and ``fused=True`` Adam, AdamW and Adagrad capture.
            example_inputs: A tensor, or tensors and constants in tuples, dicts and the like; calls
                bring the same shapes, strides and dtypes.
            example_targets: The same, or None.
            loss_function: Takes the module's result and the targets; see ``TensorLoss``.
            warmup_steps: Real steps taken, and undone, before the capture; at least one where the
                optimizer has no state yet, at least 11 under DistributedDataParallel.
            gradient_transform: Runs after backward, on gradients that are unscaled and complete.
            microbatches: Split each batch along dimension 0 into so many parts, accumulate their
                gradients (of the loss divided by their number), and update once.
            autocast: Run forward and loss under ``torch.autocast`` of this dtype.
            scaler: A ``torch.amp.GradScaler``, whose scaling, unscaling, skipping and updating then
                happen on the device.
            skip_nonfinite: Leave out the update when a gradient is not finite.
            ema: A copy of the module, whose parameters follow after each step:
                ``e.lerp_(p, 1 - ema_decay)``; its buffers are copied.
            ema_decay: See ``ema``; from 0 to 1.
            on_change: What a call does when the step does not fit any more what it was captured
                for: raise, or capture again, which takes as long as the first time.
            pool: As for ``graph()``: memory that graphs are to share.
            device: ``"cpu"`` says that a CPU module is meant where there is a GPU.

        Raises:
            ArgumentError: An argument is not as described, or the loss is not a 0-d tensor that
                depends on a parameter.
            CaptureError: Module or optimizer cannot be captured; it says what, and the remedy.
        """
        recipe = checked_recipe(
            module,
            optimizer,
            loss_function,
            gradient_transform,
            device=device_of(module, optimizer, device),
            warmup_steps=warmup_steps,
            microbatches=microbatches,
            autocast=autocast,
            scaler=scaler,
            skip_nonfinite=skip_nonfinite,
            ema=ema,
            ema_decay=ema_decay,
            on_change=on_change,
        )
        runner = Runner(recipe, on_change=on_change, warmup_steps=warmup_steps, pool=pool)
        runner.capture(example_inputs, example_targets)
        made = cls.__new__(cls)
        made.module, made.optimizer, made._runner = module, optimizer, runner
        made._publish()
        runner.publish = weakref.WeakMethod(made._publish)
        return made

    def _publish(self) -> None:
        runner = self._runner
        self.static_inputs = runner.batch.static_inputs
        self.static_targets = runner.batch.static_targets
        self.graph, self.static_loss = runner.graph, runner.outcome.loss

    def __call__(self, inputs: Any, targets: Any, *, synchronize: bool = False) -> torch.Tensor:
        """Takes one step on this batch, on the current stream.

        Args:
            inputs: Like the example's: same shapes, strides, dtypes, device and constants.
            targets: The same.
            synchronize: Wait until the device is done.

        Returns:
            The loss before the update: 0-d, detached, unchanged by later calls.

        Raises:
            SignatureMismatch: The batch differs; every difference is listed, nothing was changed.
            StaleGraph: A parameter moved, optimizer state was replaced, a mode changed or the like;
                nothing was changed.
            GraphStateError: The step is closed, or this thread is in the midst of a call of it.
        """
        loss = self._runner(inputs, targets)
        if synchronize and loss.is_cuda:
            torch.cuda.current_stream(loss.device).synchronize()
        return loss

    def until(self, inputs: Any, targets: Any, *, tolerance: float, max_steps: int) -> Until:
        """Repeats the step on one batch, in one launch, while its loss is above ``tolerance``.

        The first step is always taken, and a loss that is not a number ends the loop. The first
        call captures the loop.

        Args:
            inputs: As for a call.
            targets: The same.
            tolerance: Stop after the first step whose loss, before its update, is not above this.
            max_steps: The most steps, at least 1.

        Returns:
            How many steps were taken, and the loss of the last; both stay on the device.

        Raises:
            OperationRefused: The step draws random numbers (dropout in training): a loop would
                repeat one mask.
            ArgumentError: ``tolerance`` is no number, or ``max_steps`` no integer of at least 1.
            SignatureMismatch: As for a call.
            StaleGraph: The same.
            GraphStateError: The same.
        """
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float):
            raise _unfit("tolerance", tolerance, "Pass a number.")
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise _unfit("max_steps", max_steps, "Pass an integer of at least 1.")
        return self._runner.until(inputs, targets, float(tolerance), max_steps)

    def snapshot(self) -> Snapshot:
        """A copy of all that a step changes: parameters, buffers, optimizer, scaler and average."""
        return self._runner.snapshot()

    def reset_to(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot in one launch. What the optimizer's groups hold stays.

        Raises:
            ArgumentTypeError: It is no snapshot.
            SignatureMismatch: It is a snapshot of another step.
            StaleGraph: As for a call.
            GraphStateError: The same.
        """
        if not isinstance(snapshot, Snapshot):
            raise ArgumentTypeError(
                doing="resetting",
                subject="a step",
                met=f"the snapshot is {named(snapshot)}",
                remedy="Pass what step.snapshot() returned.",
            )
        self._runner.reset_to(snapshot)

    @property
    def metrics(self) -> Mapping[str, torch.Tensor]:
        """Metrics of the last call, detached, unchanged by later ones; see ``TensorLoss``."""
        return self._runner.metrics

    @property
    def transform_result(self) -> Any:
        """What the gradient transform returned in the last call, unchanged by later ones."""
        return self._runner.transformed

    @property
    def gradients(self) -> Mapping[str, torch.Tensor]:
        """The graph's own gradients by parameter name: live aliases, filled by each call."""
        captured = self._runner.captured
        return captured.gradients if captured is not None else {}

    @property
    def captures(self) -> int:
        """How often the step was captured: more than once with ``on_change="recapture"``."""
        return self._runner.captures

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuses copies and pickles.

        Raises:
            ArgumentTypeError: Always.
        """
        raise ArgumentTypeError(
            doing="copying or pickling",
            subject="a captured step",
            met="its graph works on the memory of the module and the optimizer that it has",
            remedy="Copy those, or save their state_dict, and capture a step of the copies.",
        )

    @property
    def stale(self) -> tuple[str, ...]:
        """What changed since the capture so that a call would raise, one line each."""
        return self._runner.stale()

    def verify(self, steps: int = 10) -> Verification:
        """Takes ``steps`` steps eagerly and captured from this state, and puts everything back.

        They are taken on the batch of the last call. Kernels that are not deterministic differ from
        themselves, too: see ``torch.use_deterministic_algorithms``.

        Raises:
            StaleGraph: As for a call.
            GraphStateError: The same, or the graph is one's own.
            ArgumentError: ``steps`` is no integer of at least 1.
        """
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise _unfit("steps", steps, "Pass an integer of at least 1.")
        return self._runner.verify(steps)

    def report(self) -> Report:
        """Measures eager and captured steps on the batch of the last call; puts everything back.

        Raises:
            StaleGraph: As for a call.
            GraphStateError: The same, or the graph is one's own.
        """
        return self._runner.report()

    def close(self) -> None:
        """Ends the graphs that were made here, and gives their memory back. Idempotent.

        From here on whatever would launch raises GraphStateError. A graph of one's own stays.
        """
        self._runner.close()

    def __repr__(self) -> str:
        names = type(self.module).__name__, type(self.optimizer).__name__
        return f"<CudaGraphAdaptationStep of {names[0]} by {names[1]}: {self.graph!r}>"


def _unknown(prediction: Any, targets: Any) -> NoReturn:
    raise GraphStateError(
        doing="taking a step eagerly with",
        subject="a graph of one's own",
        met="its loss function is not known",
        remedy="Make the step by CudaGraphAdaptationStep.capture(...).",
    )


def _unfit(name: str, value: object, remedy: str) -> ArgumentError:
    return ArgumentError(
        doing="reading", subject=f"argument {name}", met=f"it is {value!r}", remedy=remedy
    )
