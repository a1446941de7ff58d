"""Graphs with collectives end before their process group does.

A communicator cannot go while a graph holds its kernels: ``destroy_process_group`` with such a
graph alive waits for ever. So steps with collectives are closed first, however the group goes:
torch's function may have been imported before, and what is watched is the group's own ``shutdown``,
too.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from tensorplay_core.errors import TensorplayError
from tensorplay_torch import CUDAGraph

__all__ = ["close_before_groups", "watch"]

log = logging.getLogger(__name__)


class Closable(Protocol):
    """Something that ends for good."""

    def close(self) -> None:
        """Ends it. Idempotent."""
        ...


COLLECTIVE = "nccl"
"""In the names of the kernels that wait for other processes."""
_lock = threading.Lock()
_live: weakref.WeakSet[Any] = weakref.WeakSet()
_watching = False


def close_before_groups(step: Closable, graph: CUDAGraph) -> None:
    """Has ``step`` closed before any process group is destroyed, if its graph holds collectives.

    Args:
        step: Closes its graphs.
        graph: Its main one.
    """
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    if any(COLLECTIVE in node.name.lower() for node in graph.topology.walk()):
        watch(step)


def watch(step: Closable) -> None:
    """Has ``step`` closed before any process group is destroyed."""
    with _lock:
        _live.add(step)
    _watch(torch.distributed)


def _watch(distributed: Any) -> None:
    global _watching
    with _lock:
        if _watching:
            return
        _watching = True
    groups = distributed.distributed_c10d
    watched = _after_closing(groups.destroy_process_group)
    distributed.destroy_process_group = groups.destroy_process_group = watched
    kind = groups.ProcessGroup
    for name in ("shutdown", "abort"):
        if hasattr(kind, name):
            setattr(kind, name, _after_closing(getattr(kind, name)))


def _after_closing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        _close()
        return function(*args, **kwargs)

    return watched


def _close() -> None:
    with _lock:
        steps = list(_live)
        _live.clear()
    for step in steps:
        try:
            step.close()
        except TensorplayError:
            log.exception("a step could not be closed before its process group")
