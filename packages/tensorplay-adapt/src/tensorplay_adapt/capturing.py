"""The order of a safe capture: look, save, warm up, put back, capture, put back the rest."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from tensorplay_core.errors import ArgumentError, CaptureError, OperationRefused, TensorplayError
from tensorplay_core.pool import acquire
from tensorplay_core.runtime import select
from tensorplay_torch import CUDAGraph, graph
from tensorplay_torch.admission import DDP_WARMUP, is_ddp, plain_tensor
from tensorplay_torch.attributes import Attributes
from tensorplay_torch.dispatch import CaptureDispatch
from tensorplay_torch.preservation import HostRandom

from .batch import Batch
from .optimizers import admit, create_state
from .recipe import Outcome, Recipe
from .snapshot import Before, named_state

__all__ = ["Captured", "capture_step", "subject_of"]

DRIVER = "torch"


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A captured step.

    Attributes:
        graph: It.
        outcome: Static tensors that a replay fills.
        gradients: The graph's own gradients, by parameter name.
        fresh: The optimizer has taken no step yet.
        seconds: What warm-up and capture took.
    """

    graph: CUDAGraph
    outcome: Outcome
    gradients: dict[str, torch.Tensor]
    fresh: bool
    seconds: float


def capture_step(recipe: Recipe, batch: Batch, *, warmup_steps: int, pool: object) -> Captured:
    """Captures one step over the memory of ``batch``; everything else is as it was.

    Optimizer state that did not exist does afterwards, as a first step finds it.

    Raises:
        CaptureError: The step cannot be captured; see the subclasses.
        ArgumentError: The loss is none, or a parameter has no shape yet.
        Exception: Whatever the module, the loss function or the transform raises.
    """
    began = time.perf_counter()
    _admit(recipe)
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
        try:
            stream = select(DRIVER).side_stream(recipe.device, shared.pool)
            _warm_up(recipe, batch, before, stream, warmup_steps)
            fresh = _settle_state(recipe, before)
            made = CUDAGraph(device=recipe.device)
            for generator in before.preservation.generators:
                if generator.device.type == recipe.device.type:
                    made.register_generator_state(generator)
            with _nothing_else(recipe, before), _override_stale_stream(recipe.device):
                with graph(made, pool=shared.id, capture_error_mode="thread_local"):
                    outcome = recipe.run(batch.static_inputs, batch.static_targets)
            gradients = _gradients(recipe)
        except BaseException as error:
            before.forget_state()
            if not isinstance(error, TensorplayError):
                error.add_note(f"while capturing {subject_of(recipe)}; everything is as before")
            raise
    _synchronize(recipe.device)
    return Captured(
        graph=made,
        outcome=outcome,
        gradients=gradients,
        fresh=fresh,
        seconds=time.perf_counter() - began,
    )


def subject_of(recipe: Recipe) -> str:
    """What errors call the step."""
    return f"a step of {type(recipe.module).__name__} by {type(recipe.optimizer).__name__}"


def _admit(recipe: Recipe) -> None:
    admit(recipe.optimizer, recipe.device)
    for name, tensor in named_state(recipe).items():
        if is_lazy(tensor):
            raise ArgumentError(
                doing="capturing",
                subject=subject_of(recipe),
                met=f"{name} has no shape yet",
                remedy="Call the module once, so that its lazy parameters are made.",
            )
        met = plain_tensor(tensor)
        if met is None and tensor.device != recipe.device:
            met = f"is on {tensor.device}, and the step runs on {recipe.device}"
        if met is not None:
            raise CaptureError(
                doing="capturing",
                subject=subject_of(recipe),
                met=f"{name} {met}",
                remedy="Adapt modules of plain dense tensors on one device.",
            )
    hooked = [
        name
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        if getattr(recipe.optimizer, name, None)
    ]
    if hooked:
        warnings.warn(
            f"{type(recipe.optimizer).__name__} has step hooks; replays run no Python, so they run "
            "at the capture and never again. Call them after step(...) instead.",
            RuntimeWarning,
            stacklevel=4,
        )


def _warm_up(
    recipe: Recipe, batch: Batch, before: Before, stream: object, warmup_steps: int
) -> None:
    """Takes real steps, and undoes them in memory. What they bound stays for the capture."""
    if is_ddp(recipe.module):
        warmup_steps = max(warmup_steps, DDP_WARMUP)
    steps = max(warmup_steps, 0 if _has_state(recipe) else 1)
    example = [tensor.clone() for tensor in batch.tensors]
    dispatch = CaptureDispatch([before.preservation])
    try:
        with select(DRIVER).using_stream(stream, recipe.device):
            dispatch.start()
            try:
                for _ in range(steps):
                    for static, value in zip(batch.tensors, example, strict=True):
                        static.copy_(value)
                    recipe.run(batch.static_inputs, batch.static_targets)
            finally:
                dispatch.stop()
    finally:
        torch.clear_autocast_cache()
        _synchronize(recipe.device)
        before.restore_memory()


def _has_state(recipe: Recipe) -> bool:
    return all(
        one in recipe.optimizer.state
        for group in recipe.optimizer.param_groups
        for one in group["params"]
        if one.requires_grad
    )


def _settle_state(recipe: Recipe, before: Before) -> bool:
    """Gives new optimizer state its first values; True if the first step is still to come."""
    fresh, unknown = create_state(recipe.optimizer, before.born())
    if unknown:
        raise CaptureError(
            doing="capturing",
            subject=subject_of(recipe),
            met=f"its first step made state {', '.join(map(repr, unknown))}, and what that is "
            "before the first step nobody but the optimizer knows",
            remedy="Take one step eagerly before the capture, so that the state exists.",
        )
    return fresh


@contextmanager
def _nothing_else(recipe: Recipe, before: Before) -> Iterator[None]:
    """Refuses what the captured code does beside work of the device: no replay does it again."""
    host, attributes = HostRandom(), Attributes(before.modules)
    elsewhere = recipe.device.type != "cpu"
    state = torch.default_generator.get_state()
    try:
        yield
        library = host.drawn()
        if not library and elsewhere and not torch.equal(state, torch.default_generator.get_state()):
            library = "torch's generator of the CPU"
    finally:
        host.restore()
        if elsewhere:
            torch.default_generator.set_state(state)
    if library:
        raise OperationRefused(
            operation="a random draw on the host",
            subject=subject_of(recipe),
            met=f"it draws from {library}, and a replay would repeat the draw of the capture",
            remedy=f"Draw with torch on {recipe.device}, or pass what is drawn with the batch.",
        )
    changes = sorted(name for name in attributes.changes() if not name.endswith(".grad"))
    if changes:
        raise OperationRefused(
            operation="setting an attribute",
            subject=subject_of(recipe),
            met=f"it sets {', '.join(changes)} in each call, and a replay runs no Python",
            remedy="Return the value as a metric, or write a buffer in place: buffer.copy_(x).",
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


@contextmanager
def _override_stale_stream(device: torch.device) -> Iterator[None]:
    """Lets autograd take the capture stream where a node remembers an earlier one, if it can."""
    change = getattr(torch.autograd.graph, "set_override_stale_capture_stream", None)
    if change is None or device.type != "cuda":
        yield
        return
    read: Any = getattr(torch._C, "_override_stale_capture_stream", None)
    before = bool(read()) if read is not None else False
    change(True)
    try:
        yield
    finally:
        change(before)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
