"""Why an operation cannot be captured and what to do instead, one entry a reason."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from tensorplay_core.errors import CaptureInvalidated, OperationRefused, TensorplayError

from .culprit import frames, name_of, where

__all__ = ["Reason", "refused", "scheduled", "swallowed"]


class Reason(Enum):
    """A kind of refusal: what is met, and the remedy."""

    HOST_READ = (
        "it reads a tensor's value on the host, and during a capture there is no value yet",
        "Keep the value in a tensor: torch.where, torch.clamp or arithmetic in place of Python "
        "numbers, and tensorplay_torch.cond or while_loop in place of if or while; read it after "
        "the replay.",
    )
    MEMORY = (
        "it hands out a tensor's memory on the host, where captured work has not run yet",
        "Stay in torch inside the capture, or wrap the foreign code with torch.library.custom_op "
        "and register_fake; reach for the memory after the replay.",
    )
    VALUE_SHAPE = (
        "the shape of its result depends on values, and a graph has one shape",
        "Keep the full shape and a mask: torch.where(mask, x, 0), torch.nonzero_static, "
        "torch.topk, or sums of masked values.",
    )
    MASK_INDEX = (
        "indexing by a mask first finds out on the host how many elements it selects",
        "Write torch.where(mask, value, x), x.masked_fill_(mask, number) or "
        "torch.masked_scatter; x[mask] = number is fine as well.",
    )
    ERROR_CHECK = (
        "it reads back whether the factorisation succeeded",
        "Call the _ex form with check_errors=False (torch.linalg.cholesky_ex, inv_ex, solve_ex, "
        "lu_factor_ex, ldl_factor_ex) and look at its info after the replay.",
    )
    SPARSE = (
        "a tensor here is not plain strided memory (sparse, nested, quantized or of a library's "
        "own layout), so its size may change with its values",
        "Work on dense tensors inside the capture: x.to_dense(), x.to_padded_tensor(), "
        "x.dequantize().",
    )
    MOVES_EXTERNAL = (
        "it gives other memory or another shape to a tensor that was not born in this capture, "
        "and the graph would go on using the old one",
        "Use the operation that returns a new tensor or view (x.t(), x.unsqueeze(0)), or copy_ "
        "into memory of the right size; resize before the capture.",
    )
    DATA_ASSIGNMENT = (
        "assigning .data swaps a tensor's memory behind the graph, which would go on using the old",
        "Write into the memory: with torch.no_grad(): p.copy_(value).",
    )
    COPIED_BY_BYTES = (
        "it copies a tensor's bytes on the host, where captured work has not run yet",
        "Use x.clone() inside the capture; copy, pickle or save after the replay.",
    )
    NO_META = (
        "there is no meta kernel that says what shape its result has, and a CPU capture runs "
        "nothing to find out",
        "Register one: torch.library.register_fake. For an operation of torch itself, use another "
        "formula, or capture on CUDA.",
    )
    OTHER_DEVICE = (
        "a capture on the CPU met a tensor or a result that is on another device or pinned",
        "Move it to the CPU before the capture, or capture on its device: device='cuda'.",
    )
    RNG_BY_HAND = (
        "the state of a random generator was set by hand during the capture (manual_seed, "
        "set_state, fork_rng, a checkpoint that restores it, or another thread), and a replay "
        "would not repeat that",
        "Seed before the capture, and between replays as you like; checkpoint only functions "
        "that draw no random numbers, or pass preserve_rng_state=False.",
    )
    RNG_UNREGISTERED = (
        "it draws from a generator that the graph does not know",
        "Call graph.register_generator_state(generator) before the capture, or draw from the "
        "default generator.",
    )
    RNG_IN_BODY = (
        "random numbers cannot be drawn inside the body of a conditional: a loop would repeat one "
        "mask on a GPU",
        "Draw them before the conditional, for a loop as many as it can need, and index them.",
    )
    FAST_ATTENTION = (
        "outside a capture this attention may take torch's fast path, which torch leaves as soon "
        "as anybody looks at its functions, as a capture on the CPU does: the bits would differ",
        "Call torch.backends.mha.set_fastpath_enabled(False) once at the start, which makes eager "
        "code take the same path.",
    )
    COMPILED = (
        "a function that torch.compile compiled would run its own kernels during the capture, "
        "which on the CPU cannot be recorded",
        "Capture the original function (f.__wrapped__, module._orig_mod), or capture on CUDA.",
    )
    HIGHER_ORDER = (
        "a higher-order operator runs what it is given by itself",
        "Use tensorplay_torch.cond or while_loop, or plain Python control flow.",
    )
    COLLECTIVE = (
        "a collective on the CPU waits on the host for other processes",
        "Take it out of the capture, or capture on CUDA with NCCL.",
    )
    CUSTOM_QUERY = (
        "it returns a value to Python, which the capture would freeze",
        "Let it return a tensor, and read that after the replay.",
    )
    SCHEDULE = (
        "a learning rate schedule computes the next rate in Python: each replay would set the one "
        "of the capture, and the schedule would not go on",
        "Step the schedule between replays: with the rate in a tensor (lr=torch.tensor(0.1), "
        "fused=True or capturable=True) the graph reads what the schedule writes there.",
    )
    HOST_WRITE = (
        "it changes a tensor in host memory that was not born in this capture: on the host it "
        "runs now, once, and never again at a replay",
        "Keep that tensor on the device that captures.",
    )
    BLOCKING_COPY = (
        "it copies between host and device and waits for the copy, which a capture forbids",
        "Copy before or after the capture; inside it, between pinned memory and the device with "
        "non_blocking=True.",
    )


SCHEDULES = frozenset({"torch.optim.lr_scheduler", "torch.optim.swa_utils"})
ON_THE_HOST = (Reason.HOST_READ, Reason.HOST_WRITE)
OPTIMIZER_READS = (
    "Make it one that keeps its step count in a tensor on the device: "
    "torch.optim.Adam(..., fused=True, capturable=True) or AdamW(..., fused=True, "
    "capturable=True) capture on the CPU and on CUDA; on the CPU so do SGD, Adadelta, RMSprop, "
    "Rprop and Adagrad(..., fused=True)."
)


def refused(
    operation: object,
    reason: Reason,
    *,
    met: str | None = None,
    remedy: str | None = None,
    thread: int | None = None,
) -> OperationRefused:
    """The error that refuses ``operation``, with the user's line.

    Args:
        operation: An operator, or the name of what was called.
        reason: Why.
        met: Said in place of the reason's own words.
        remedy: The same.
        thread: The thread that captures; see ``culprit.frames``.
    """
    if remedy is None and reason in ON_THE_HOST:
        remedy = _for_optimizers() or None
    return OperationRefused(
        operation=name_of(operation),
        met=met or reason.value[0],
        remedy=remedy or reason.value[1],
        where=where(thread),
    )


def swallowed(refusal: TensorplayError) -> CaptureInvalidated:
    """What ends a capture in which ``refusal`` was raised and did not get out of the block.

    A GPU's capture would be broken too; and what ran instead is not what eager code would run.
    """
    return CaptureInvalidated(
        doing="ending a capture after",
        subject="an operation that was refused",
        met=f"its error did not leave the block: {refusal.args[0] if refusal.args else refusal}",
        remedy="Take what caught it (a bare except, a log of a tensor) out of the block, or the "
        "operation.",
    )


def scheduled(operation: str, args: Sequence[Any]) -> bool:
    """True if a learning rate schedule of torch's writes its next rate.

    Args:
        operation: Name of the operation.
        args: Its arguments.
    """
    if not operation.startswith("aten.fill_") or args[0].dim():
        return False
    return any(frame.f_globals.get("__name__") in SCHEDULES for frame in frames())


def _for_optimizers() -> str:
    """What to do where the step of an optimizer or a schedule is on the stack, or ``""``."""
    for frame in frames():
        module = frame.f_globals.get("__name__", "")
        if module in SCHEDULES:
            return Reason.SCHEDULE.value[1]
        if module.startswith("torch.optim."):
            name = type(frame.f_locals.get("self")).__name__
            if name != "NoneType":
                return f"{name}.step() works with numbers on the host. {OPTIMIZER_READS}"
    return ""
