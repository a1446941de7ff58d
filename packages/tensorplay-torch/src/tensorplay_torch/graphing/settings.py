"""How callables are captured: the arguments of ``make_graphed_callables``, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorplay_core.errors import ArgumentError
from tensorplay_core.protocols import CAPTURE_MODES, CaptureMode

if TYPE_CHECKING:
    import torch

__all__ = ["Settings", "checked_settings", "unfit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How callables are captured; the arguments of ``make_graphed_callables``."""

    warmup: int = 3
    allow_unused: bool = False
    mode: CaptureMode = "global"
    in_graph: bool = False
    alias: bool = False
    slots: int = 1
    retain: bool = False
    recapture: bool = False
    generators: tuple[torch.Generator, ...] = ()


def checked_settings(
    *,
    num_warmup_iters: int,
    allow_unused_input: bool,
    capture_error_mode: CaptureMode,
    param_grads: str,
    outputs: str,
    slots: int,
    retain_graph: bool,
    on_change: str,
) -> Settings:
    """The arguments of ``make_graphed_callables`` as settings.

    Raises:
        ArgumentError: One is out of its range.
    """
    for name, number, least in (("num_warmup_iters", num_warmup_iters, 0), ("slots", slots, 1)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise unfit("callables", f"{name} is {number!r}", f"Pass an int ≥ {least}.")
    for name, word, words in (
        ("capture_error_mode", capture_error_mode, CAPTURE_MODES),
        ("param_grads", param_grads, ("autograd", "in_graph")),
        ("outputs", outputs, ("copy", "alias")),
        ("on_change", on_change, ("raise", "recapture")),
    ):
        if word not in words:
            raise unfit(
                "callables", f"{name} is {word!r}", f"Pass {' or '.join(map(repr, words))}."
            )
    return Settings(
        warmup=num_warmup_iters,
        allow_unused=bool(allow_unused_input),
        mode=capture_error_mode,
        in_graph=param_grads == "in_graph",
        alias=outputs == "alias",
        slots=slots,
        retain=bool(retain_graph),
        recapture=on_change == "recapture",
    )


def unfit(subject: str, met: str, remedy: str) -> ArgumentError:
    """The error for arguments that no callable could be graphed with."""
    return ArgumentError(doing="graphing", subject=subject, met=met, remedy=remedy)
