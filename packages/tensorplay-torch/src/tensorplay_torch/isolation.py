"""Torch with nothing switched on: no modes, transforms, autocast or autograd of the caller.

Replays run so, since what was recorded already went through all that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch

from ._private import dispatch_keys, required
from .metadata import settings

__all__ = ["isolated", "plainly", "under_settings"]

Work = Callable[[], object]


Guard = Callable[[], AbstractContextManager[Any]]


@cache
def _guards() -> tuple[Guard, Guard, Guard]:
    """Dispatch below autograd, dispatch as in a fresh thread, no function modes."""
    force = required("force_dispatch_keys", "replaying on the CPU")
    plain = required("disable_torch_function", "replaying on the CPU")
    included, excluded, below_autograd = dispatch_keys()
    return partial(force, included, below_autograd), partial(force, included, excluded), plain


def isolated(launch: Callable[..., None]) -> Callable[..., None]:
    """``launch`` in isolation. Tensors that it writes count versions, as after eager work."""
    force, _, plain = _guards()
    set_grad = required("set_grad_enabled", "replaying on the CPU")

    def isolated_launch(stream: object | None = None) -> None:
        grad = torch.is_grad_enabled()
        with force(), plain():
            # Each recorded tensor says for itself whether grad mode was on for it.
            set_grad(True)
            try:
                launch(stream)
            finally:
                set_grad(grad)

    return isolated_launch


def plainly(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A tensor made as in a fresh thread: an alias made so shares the version of its source."""
    _, force, plain = _guards()
    with force(), plain():
        return make()


def under_settings(work: Work, wanted: tuple[Any, ...]) -> Work:
    """``work`` with torch's switches set as ``metadata.settings`` read them at its capture."""

    def work_under_settings() -> None:
        before = settings()
        _set(wanted)
        try:
            work()
        finally:
            _set(before)

    return work_under_settings


def _set(wanted: tuple[Any, ...]) -> None:
    mkldnn, deterministic, warn_only, threads = wanted
    required("set_mkldnn", "replaying on the CPU")(mkldnn)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.set_num_threads(threads)
