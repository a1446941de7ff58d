"""Torch with nothing switched on: no modes, transforms, autocast or autograd of the caller.

Replays run so, since what was recorded already went through all that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch

from tensorplay_torch._private import dispatch_keys, required

from .standins import flagged_as
from .switches import Held, Wanted

__all__ = ["alias_of", "isolated", "under_settings", "without_grad"]

Work = Callable[[], object]


Guard = Callable[[], AbstractContextManager[Any]]


@cache
def _guards() -> tuple[Guard, Guard, Guard]:
    """Dispatch below autograd, dispatch as in a fresh thread, no function modes."""
    force = required("force_dispatch_keys", "replaying on the CPU")
    plain = required("disable_torch_function", "replaying on the CPU")
    included, excluded, below_autograd = dispatch_keys()
    return partial(force, included, below_autograd), partial(force, included, excluded), plain


def isolated(
    launch: Callable[..., None], dtype: torch.dtype | None = None, *, switches: bool = True
) -> Callable[..., None]:
    """``launch`` in isolation. Tensors that it writes count versions, as after eager work.

    Args:
        launch: Runs recorded work; called with what it is itself to be called with.
        dtype: torch's default one when that was recorded, in which integers are divided and numbers
            drawn; None is the present one.
        switches: False if whoever calls it sees to that.
    """
    wanted = Wanted(dtype=dtype or torch.get_default_dtype())
    force, _, plain = _guards()
    set_grad = required("set_grad_enabled", "replaying on the CPU")

    def plainly(stream: Any = None) -> None:
        grad = torch.is_grad_enabled()
        with force(), plain():
            # Recorded tensors say for themselves whether they require grad.
            try:
                set_grad(True)
                launch(stream)
            finally:
                set_grad(grad)

    def isolated_launch(stream: Any = None) -> None:
        held = Held(wanted)
        try:
            held.enter()
            plainly(stream)
        finally:
            held.leave()

    return isolated_launch if switches else plainly


def alias_of(tensor: torch.Tensor, *, counted: bool) -> torch.Tensor:
    """A tensor over the same memory, without autograd's history.

    Args:
        tensor: Of which; made in inference mode or not, the alias is not, and so can be written
            outside it.
        counted: Writes to the alias are to count as writes to ``tensor``.
    """
    if tensor.is_inference():
        with torch.inference_mode(False):
            alias = torch.empty(0, dtype=tensor.dtype)
            alias.set_(
                tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
            )
            return flagged_as(tensor, alias)
    if not counted:
        return tensor.detach()
    _, force, plain = _guards()
    with force(), plain():
        return tensor.detach()


def without_grad(work: Work) -> Work:
    """``work`` with grad mode off, inside an isolated launch."""
    set_grad = required("set_grad_enabled", "replaying on the CPU")

    def work_without_grad() -> None:
        try:
            set_grad(False)
            work()
        finally:
            set_grad(True)

    return work_without_grad


def under_settings(work: Work, wanted: Wanted) -> Work:
    """``work`` with torch's switches set as they were at its capture."""

    def work_under_settings() -> None:
        held = Held(wanted)
        try:
            held.enter()
            work()
        finally:
            held.leave()

    return work_under_settings
