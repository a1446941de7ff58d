"""What a callable must not be or hold to be graphed, refused by name before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tensorplay_core.errors import ArgumentError, CaptureError, TensorplayError
from tensorplay_torch.tracking.reached import Reached, compile_contexts

__all__ = ["DDP_WARMUP", "admit", "is_ddp", "plain_tensor"]

DDP_WARMUP = 11
"""Warm-up calls until DistributedDataParallel has rebuilt its buckets, by torch's CUDA notes."""
HOOKS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")


def admit(function: object, reached: Reached, subject: str) -> None:
    """Refuses ``function`` if replays of it could not be what eager calls are.

    Raises:
        CaptureError: A module, hook, parameter or buffer in it that cannot be graphed.
        ArgumentError: A parameter that has no shape yet.
    """
    for met, remedy in _modules(function, reached):
        raise CaptureError(doing="graphing", subject=subject, met=met, remedy=remedy)
    for context in compile_contexts(function, reached.modules.values()):
        if _has_graphs_of_its_own(context):
            raise CaptureError(
                doing="graphing",
                subject=subject,
                met="it holds a region that torch.compile runs as CUDA graphs of its own "
                "(mode='reduce-overhead' or the like), which cannot be captured again",
                remedy="Compile it with mode='default' or 'max-autotune-no-cudagraphs'.",
            )
    for name, tensor in (*reached.parameters(), *reached.buffers()):
        error = _tensor(name, tensor, subject)
        if error is not None:
            raise error


def is_ddp(module: object) -> bool:
    """True for torch's DistributedDataParallel."""
    return isinstance(module, nn.parallel.DistributedDataParallel)


def plain_tensor(tensor: torch.Tensor) -> str | None:
    """Why a graph cannot stand for the tensor; None if it can."""
    kind = type(tensor)
    if kind not in (torch.Tensor, nn.Parameter, nn.Buffer):
        names = {one.__name__ for one in kind.__mro__}
        if "DTensor" in names:
            return "is a DTensor, whose shards move"
        return f"is a {kind.__module__}.{kind.__qualname__}, a tensor that dispatches by itself"
    if tensor.is_quantized:
        return f"is quantized ({tensor.dtype})"
    if tensor.is_nested:
        return "is nested, not strided memory"
    if tensor.layout != torch.strided:
        return f"is {str(tensor.layout).removeprefix('torch.')}, not strided memory"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"is on {tensor.device}; graphs run on CUDA and on the CPU"
    return None


def _modules(function: object, reached: Reached) -> Iterator[tuple[str, str]]:
    if nn.modules.module._has_any_global_hook():
        yield (
            "hooks for all modules are registered "
            "(torch.nn.modules.module.register_module_forward_hook or the like), and a replay "
            "runs no Python",
            "Remove them while graphing and replaying.",
        )
    for path, module in reached.modules.items():
        name = f"{path or 'it'!s} ({type(module).__name__})"
        kinds = {one.__name__ for one in type(module).__mro__}
        if is_ddp(module):
            yield (
                f"{name} is DistributedDataParallel inside another callable",
                "Graph the sections of the network first, then wrap it; or pass the "
                "DistributedDataParallel module itself.",
            )
        if "FSDPModule" in kinds or "FullyShardedDataParallel" in kinds:
            yield (
                f"{name} is sharded by FSDP, which moves its parameters in every pass",
                "Graph sections that FSDP does not manage.",
            )
        if isinstance(module, nn.DataParallel):
            yield f"{name} spreads over devices", "Graph one replica on one device."
        if isinstance(module, torch.jit.ScriptModule):
            yield f"{name} is TorchScript", "Graph the Python module that it was made from."
        if type(module).__module__.startswith(QUANTIZED):
            yield f"{name} is quantized", "Graph the module before it is quantized."
        if module is not function:
            yield from _hooks(module, name)
        elif getattr(module, "_compiled_call_impl", None) is not None:
            yield (
                f"{name} was compiled in place by module.compile()",
                "Pass torch.compile(module) instead.",
            )


def _hooks(module: nn.Module, name: str) -> Iterator[tuple[str, str]]:
    for attribute, kind in HOOKS.items():
        for hook in getattr(module, attribute).values():
            called = getattr(hook, "__qualname__", type(hook).__qualname__)
            yield (
                f"{name} has a {kind} ({called}), and a replay runs no Python",
                "Remove it, or register it on the module that is graphed: hooks there run at "
                "every call. In place of torch.nn.utils.weight_norm and spectral_norm use those "
                "of torch.nn.utils.parametrizations; make pruning permanent with prune.remove.",
            )


def _tensor(name: str, tensor: torch.Tensor, subject: str) -> TensorplayError | None:
    if is_lazy(tensor):
        return ArgumentError(
            doing="graphing",
            subject=subject,
            met=f"{name} has no shape yet",
            remedy="Call the module once, so that its lazy parameters are made.",
        )
    met = plain_tensor(tensor)
    if met is None:
        return None
    return CaptureError(
        doing="graphing",
        subject=subject,
        met=f"{name} {met}",
        remedy="Graph sections whose parameters and buffers are plain dense tensors.",
    )


def _has_graphs_of_its_own(context: Any) -> bool:
    config = context.compiler_config
    if isinstance(config, dict) and config.get("triton.cudagraphs"):
        return True
    part = getattr(context, "callback", None)
    while part is not None:
        if getattr(part, "_compiler_name", None) == "cudagraphs":
            return True
        part = getattr(part, "_torchdynamo_orig_backend", None)
    return False
