"""What cannot be adapted by replays, refused by name before anything runs."""

from __future__ import annotations

import warnings

from torch.nn.parameter import is_lazy

from tensorplay_core.errors import ArgumentError, CaptureError
from tensorplay_torch.graphing.eligibility import plain_tensor

from .optimizers import admit
from .recipe import Recipe
from .snapshot import named_state

__all__ = ["admit_step", "subject_of"]

HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def admit_step(recipe: Recipe) -> None:
    """Refuses a step that replays could not take.

    Raises:
        CaptureError: By its optimizer, or a tensor that no graph can stand for.
        ArgumentError: A parameter has no shape yet.
    """
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
    if any(getattr(recipe.optimizer, name, None) for name in HOOKS):
        warnings.warn(
            f"{type(recipe.optimizer).__name__} has step hooks. Replays run no Python, so they run "
            "while the step is captured and never again: call them after step(...) instead.",
            RuntimeWarning,
            stacklevel=4,
        )


def subject_of(recipe: Recipe) -> str:
    """What errors call the step."""
    return f"a step of {type(recipe.module).__name__} by {type(recipe.optimizer).__name__}"
