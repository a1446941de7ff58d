"""Captured code that does more than work of its device: that part no replay would do again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from tensorplay_core.errors import OperationRefused
from tensorplay_torch.resources.generators import put_back
from tensorplay_torch.tracking.attributes import Attributes
from tensorplay_torch.tracking.preservation import HostRandom
from tensorplay_torch.tracking.repeats import Repeats

from .admission import subject_of
from .recipe import Recipe
from .snapshot import OF_OPTIMIZERS

__all__ = ["nothing_else", "refuse_changing"]


@contextmanager
def nothing_else(recipe: Recipe, objects: Mapping[str, object]) -> Iterator[None]:
    """Refuses what the code in the block does beside work of the recipe's device.

    Args:
        recipe: What the block runs.
        objects: Whose attributes it may set: modules, owners of methods, schedules.

    Raises:
        OperationRefused: It set attributes, or drew random numbers on the host.
    """
    host, attributes = HostRandom(), Attributes(objects, OF_OPTIMIZERS)
    elsewhere = recipe.device.type != "cpu"
    state = torch.default_generator.get_state()
    try:
        yield
        library = host.drawn()
        if (
            not library
            and elsewhere
            and not torch.equal(state, torch.default_generator.get_state())
        ):
            library = "torch's generator of the CPU"
    finally:
        host.restore()
        if elsewhere:
            put_back(torch.default_generator, state)
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


def refuse_changing(recipe: Recipe, repeats: Repeats) -> None:
    """Refuses a step that does other work in each call, on the same batch.

    Raises:
        OperationRefused: Two calls of the warm-up differ; it is said in what.
    """
    met = repeats.difference()
    if met is not None and not recipe.compiled:
        raise OperationRefused(
            operation="work that changes from call to call",
            subject=subject_of(recipe),
            met=f"{met}: Python counts, draws or looks at the clock, and a replay runs no Python",
            remedy="Keep what changes in a tensor that is written in place (buffer.add_(1)), draw "
            f"with torch on {recipe.device}, or pass it with the batch.",
        )
