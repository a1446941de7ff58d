"""What is settled on a device before torch captures there: waiting work, memory, work spaces."""

from __future__ import annotations

import time

import torch

from tensorplay_torch._private import PRIVATE

from .broken import torch_failure

__all__ = ["forget_workspaces", "settle"]

SOON = 0.05
"""Seconds for which a device that had memory to spare is taken to have it: asking takes 25 µs."""
_spacious_until: dict[torch.device, float] = {}


def forget_workspaces() -> None:
    """Lets libraries take their work space anew: in a capture from its pool, after it from outside.

    torch keeps cuBLAS's by stream, and frees it when any graph of that stream is reset, or when
    torch.compile asks for it. Work space of eager code would then be reused under a graph that was
    captured over it, and eager code on the stream would scribble over that of the graph.
    """
    if (clear := PRIVATE["clear_workspaces"].value) is not None:
        clear()


def settle(device: torch.device) -> None:
    """Waits for the device, which is the current one, and frees what no capture could have freed.

    Freeing takes longer than the rest of ``begin``, and so does allocating again afterwards: it is
    done where memory may be wanted, on a device less than half of which is free.
    """
    try:
        (PRIVATE["synchronize"].value or torch.cuda.synchronize)()
        now = time.monotonic()
        if now < _spacious_until.get(device, 0):
            return
        free, total = torch.cuda.mem_get_info(device)
        if 2 * free > total:
            _spacious_until[device] = now + SOON
            return
        torch.cuda.empty_cache()
        if (empty_host_cache := PRIVATE["host_empty_cache"].value) is not None:
            empty_host_cache()
    except RuntimeError as error:
        raise torch_failure("cudaDeviceSynchronize", str(device), error) from error
