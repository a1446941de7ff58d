"""The arguments of ``CudaGraphAdaptationStep``, checked before anything is done."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.signature import named
from tensorplay_torch.resources.devices import resolve_device

from .features import Features
from .optimizers import begins_by_rate, damped_keys
from .recipe import Recipe

__all__ = ["check_own_graph", "checked_recipe", "device_of"]

CAPTURING = "capturing"
ADOPTING = "making, of a graph of one's own,"


def device_of(module: Any, optimizer: Any, device: object) -> torch.device:
    """The device that a step of this module runs on.

    Raises:
        ArgumentTypeError: They are no module and no optimizer.
        ArgumentError: Another device is asked for, or a CPU module where there is a GPU and the CPU
            was not asked for.
    """
    _check_trained(module, optimizer)
    first = next(iter((*module.parameters(), *_parameters(optimizer))), None)
    if first is None:
        raise _unfit("the module has no parameters", "Pass a module with parameters to adapt.")
    found = resolve_device(first.device)
    if device is not None and resolve_device(device) != found:
        raise _unfit(
            f"device is {device!r}, and the module is on {found}",
            "Leave device out, or move the module there before its optimizer is made.",
        )
    if device is None and found.type == "cpu" and torch.cuda.is_available():
        raise _unfit(
            "the module is on the CPU, and there is a GPU here",
            "Move it before its optimizer is made: module.to('cuda'); or say that the CPU is "
            "meant: device='cpu'.",
        )
    return found


def check_own_graph(module: Any, optimizer: Any, graph: Any, static_loss: Any) -> None:
    """Checks the parts of a step around a graph that its user captured.

    Raises:
        ArgumentTypeError: One is of a wrong type.
        ArgumentError: The loss is not 0-d.
    """
    _check_trained(module, optimizer, ADOPTING)
    if not callable(getattr(graph, "replay", None)):
        raise _unfit(f"graph is {named(graph)}", "Pass a captured CUDAGraph.", True, ADOPTING)
    if not isinstance(static_loss, torch.Tensor):
        remedy = "Pass the tensor that the graph writes its loss to."
        raise _unfit(f"static_loss is {named(static_loss)}", remedy, True, ADOPTING)
    if static_loss.dim():
        met = f"static_loss has shape {tuple(static_loss.shape)}"
        raise _unfit(met, "Pass a 0-d tensor: reduce it in the graph.", False, ADOPTING)


def _check_trained(module: Any, optimizer: Any, doing: str = CAPTURING) -> None:
    for name, value, kind in (("module", module, nn.Module), ("optimizer", optimizer, Optimizer)):
        if not isinstance(value, kind):
            remedy = f"Pass a {kind.__module__}.{kind.__name__}."
            raise _unfit(f"{name} is {named(value)}", remedy, True, doing)


def checked_recipe(
    module: nn.Module,
    optimizer: Optimizer,
    loss_function: Any,
    gradient_transform: Any,
    *,
    device: torch.device,
    warmup_steps: Any,
    microbatches: Any,
    autocast: Any,
    scaler: Any,
    skip_nonfinite: bool,
    ema: Any,
    ema_decay: Any,
    on_change: Any,
) -> Recipe:
    """What a step with these arguments does.

    Raises:
        ArgumentTypeError: One is of a wrong type.
        ArgumentError: One is out of its range, or two do not go together.
    """
    for name, value in (
        ("loss_function", loss_function),
        ("gradient_transform", gradient_transform),
    ):
        if not callable(value) and not (name == "gradient_transform" and value is None):
            raise _unfit(f"{name} is {named(value)}", "Pass a callable.", True)
    for name, value, least in (
        ("warmup_steps", warmup_steps, 0),
        ("microbatches", microbatches, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _unfit(f"{name} is {value!r}", f"Pass an int ≥ {least}.")
    if on_change not in ("raise", "recapture"):
        raise _unfit(f"on_change is {on_change!r}", "Pass 'raise' or 'recapture'.")
    if autocast is not None and autocast not in (torch.float16, torch.bfloat16):
        raise _unfit(f"autocast is {autocast!r}", "Pass torch.float16, torch.bfloat16 or None.")
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise _unfit(f"scaler is {named(scaler)}", "Pass a torch.amp.GradScaler.", True)
    if scaler is not None and not scaler.is_enabled():
        scaler = None
    if scaler is not None and torch.device(scaler._device).type != device.type:
        raise _unfit(
            f"the scaler is for {scaler._device}, the module on {device}",
            f"Make it for the device: torch.amp.GradScaler({device.type!r}).",
        )
    if scaler is not None and skip_nonfinite:
        raise _unfit(
            "both scaler and skip_nonfinite are given",
            "Leave skip_nonfinite out: the scaler skips such steps itself.",
        )
    if (
        isinstance(ema_decay, bool)
        or not isinstance(ema_decay, int | float)
        or not 0 <= ema_decay <= 1
    ):
        raise _unfit(f"ema_decay is {ema_decay!r}", "Pass a number from 0 to 1.")
    if ema is not None:
        _check_average(ema, module)
    if not list(_parameters(optimizer)):
        raise _unfit("the optimizer has no parameters", "Make it of the module's parameters.")
    features = Features(
        microbatches=microbatches,
        autocast=autocast,
        scaler=scaler,
        skip_nonfinite=bool(skip_nonfinite),
        ema=ema,
        ema_decay=float(ema_decay),
        taken=_counter(optimizer, device) if scaler is not None or skip_nonfinite else None,
    )
    return Recipe(
        module=module,
        optimizer=optimizer,
        loss_function=loss_function,
        gradient_transform=gradient_transform,
        device=device,
        features=features,
    )


def _check_average(ema: Any, module: nn.Module) -> None:
    if not isinstance(ema, nn.Module):
        raise _unfit(f"ema is {named(ema)}", "Pass a module: copy.deepcopy(module).", True)
    if isinstance(ema, AveragedModel):
        raise _unfit(
            "ema is an AveragedModel, which counts its updates on the host",
            "Pass averaged.module, once the first update_parameters() has filled it.",
        )
    mine, theirs = (
        {name: tuple(one.shape) for name, one in (*a.named_parameters(), *a.named_buffers())}
        for a in (module, ema)
    )
    shared = {id(one) for one in module.parameters()}
    if mine != theirs or any(id(one) in shared for one in ema.parameters()):
        raise _unfit(
            "ema is no copy of the module: names or shapes differ, or memory is shared",
            "Pass copy.deepcopy(module).",
        )


def _counter(optimizer: Optimizer, device: torch.device) -> torch.Tensor | None:
    """Counts updates, if the first one, which may be skipped, is unlike the others."""
    if not damped_keys(optimizer) and not begins_by_rate(optimizer):
        return None
    with torch.inference_mode(False):
        return torch.zeros((), dtype=torch.int64, device=device)


def _parameters(optimizer: Optimizer) -> Any:
    return (one for group in optimizer.param_groups for one in group["params"])


def _unfit(
    met: str, remedy: str, wrong_type: bool = False, doing: str = CAPTURING
) -> ArgumentError:
    kind = ArgumentTypeError if wrong_type else ArgumentError
    return kind(doing=doing, subject="a step", met=met, remedy=remedy)
