"""Ending torch's captures, and giving back what a broken one would keep.

Until 2.13 ``CUDAGraph.capture_end`` stops at the first error: the allocator goes on routing to the
graph's pool, the pool is never released, and the generators refuse eager work. ``drop`` mends that.
"""

from __future__ import annotations

import ctypes
import logging
import re
import sys
import warnings
from contextlib import suppress
from typing import Any

import torch

from tensorplay_torch.resources.generators import Generators
from tensorplay_torch.resources.pools import TorchPool, abandon, give_back

__all__ = ["drop", "end_quietly", "hear_again"]

log = logging.getLogger(__name__)

QUIET = ("ignore", re.compile("(?#of a capture of tensorplay's)"), Warning, None, 0)
"""A filter of the form that ``warnings.filters`` holds, like no other: it lets no warning pass."""
FILTERS_ARE_GLOBAL = sys.version_info < (3, 14)

# Graphs that torch failed to end: its allocator of pinned memory goes on asking them about streams.
_broken: list[torch.cuda.CUDAGraph] = []


def end_quietly(graph: torch.cuda.CUDAGraph) -> None:
    """Ends torch's capture, on whose stream this thread must be.

    Raises:
        RuntimeError: The capture was broken.
    """
    # Its only warning is of an empty graph: whether one is meant is for the caller to say, who gets
    # a typed error.
    if not FILTERS_ARE_GLOBAL:
        with warnings.catch_warnings(action="ignore"):
            graph.capture_end()
        return
    # To copy all filters, as that does, takes twice as long as the call.
    filters: Any = warnings.filters
    try:
        filters.insert(0, QUIET)
        graph.capture_end()
    finally:
        hear_again()


def hear_again() -> None:
    """Lets warnings pass again. Idempotent: an interrupt may have kept it from being done."""
    filters: Any = warnings.filters
    while QUIET in filters:
        with suppress(ValueError):  # Another thread was faster.
            filters.remove(QUIET)


def drop(
    graph: torch.cuda.CUDAGraph,
    pool: TorchPool,
    stream: torch.cuda.Stream,
    generators: Generators,
    *,
    broken: bool,
    poisoned: bool = False,
) -> None:
    """Gives back what a capture took of torch.

    Args:
        graph: torch's graph.
        pool: What it allocated from.
        stream: What it ran on.
        generators: Those it was to advance.
        broken: torch could not end it itself.
        poisoned: It holds a conditional body that broke: destroying it would end the process.
    """
    if poisoned and not broken:
        # Not even at interpreter exit, where module globals go.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))
        give_back(pool)
        pool.lose(graph)
        return
    if not broken:
        assert pool.native is not None, "it served the capture"
        pool.end(graph, pool.native)
        return
    graph.reset()
    if graph not in _broken:
        _broken.append(graph)
    abandon(pool)
    pool.lose(graph)
    # A capture that succeeds takes the generators out of the one that did not.
    another, something = torch.cuda.CUDAGraph(), torch.zeros(1, device=pool.device)
    generators.register_with(another)
    with torch.cuda.stream(stream):
        try:
            another.capture_begin(capture_error_mode="relaxed")
            something.zero_()
        finally:
            if torch.cuda.is_current_stream_capturing():
                another.capture_end()
            another.reset()
