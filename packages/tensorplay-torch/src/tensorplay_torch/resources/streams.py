"""Streams that captures run on: one per pool and depth, this package's own, reused after the pool.

torch hands out its streams from a ring of 32, so one of them may belong to somebody else as well,
whose work a capture would swallow; and its ``graph`` keeps one for all devices. These are made by
core's CUDA driver, and the libraries' workspaces, which torch keeps by stream, are then a pool's
own too. A stream is reused, not destroyed: torch's allocator goes on naming it.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from tensorplay_torch._private import PRIVATE

from .bases import Bases
from .devices import index_of, stream_handle
from .pools import TorchPool

__all__ = ["Current", "Lane", "SideStreams", "as_torch_stream", "current_handle"]


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream, as core's CUDA driver made it and as torch knows it."""

    native: object
    anchor: object
    """The driver keeps the stream as long as this."""
    torch: torch.cuda.Stream


def current_handle(device: torch.device) -> int:
    """Handle of torch's current stream on a CUDA device."""
    raw = PRIVATE["current_raw_stream"].value
    if raw is None:
        return torch.cuda.current_stream(device).cuda_stream
    handle: int = raw(index_of(device))
    return handle


class Current:
    """Makes a stream torch's current one in this thread while entered.

    As ``torch.cuda.stream`` does, in a fifth of the time: the stream's device is current already.
    Leaving is harmless where it was not entered, and idempotent.
    """

    __slots__ = ("_before", "_handle", "device", "stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream, self.device = stream, stream.device
        self._handle = stream.cuda_stream
        self._before: Any = None

    def is_current(self) -> bool:
        """True if it is the current stream of its device now."""
        return current_handle(self.device) == self._handle

    def __enter__(self) -> None:
        stream, get, put = self.stream, PRIVATE["get_stream"].value, PRIVATE["set_stream"].value
        if get is None or put is None:
            self._before = torch.cuda.current_stream(self.device)
            torch.cuda.set_stream(stream)
            return
        self._before = get(stream.device_index)
        put(stream.stream_id, stream.device_index, stream.device_type)

    def __exit__(self, *error: object) -> None:
        before, put = self._before, PRIVATE["set_stream"].value
        if before is None:
            return
        if put is None or not isinstance(before, tuple):
            torch.cuda.set_stream(before)
            return
        put(*before)


class SideStreams:
    """The capture streams of one driver, by pool."""

    def __init__(self, bases: Bases) -> None:
        self._bases = bases
        self._free: dict[torch.device, list[Lane]] = {}
        self._spoilt: list[Lane] = []
        # Reentrant, because a finaliser that ends a graph may run in the midst of its holder.
        self._lock = threading.RLock()

    def of(self, pool: TorchPool) -> torch.cuda.Stream:
        """The stream that captures into ``pool`` run on."""
        with self._lock:
            if pool.stream is None:
                if 0 not in pool.lanes:
                    pool.lanes[0] = self._take(pool.device)
                pool.stream = pool.lanes[0].torch
            return pool.stream

    def lane(self, pool: TorchPool, depth: int) -> Lane:
        """The stream that bodies at ``depth`` (from 1) of captures into ``pool`` run on."""
        with self._lock:
            if depth not in pool.lanes:
                pool.lanes[depth] = self._take(pool.device)
            return pool.lanes[depth]

    def honour(self, pool: TorchPool, stream: torch.cuda.Stream) -> None:
        """Accepts a stream that the user named for a capture into ``pool``.

        The first becomes the pool's own; one that differs is used, with one warning a pool.
        """
        if pool.stream is stream:
            return
        with self._lock:
            if pool.stream is None:
                pool.stream = stream
                return
            if pool.stream.cuda_stream == stream.cuda_stream or pool.warned:
                return
            pool.warned = True
        warnings.warn(
            f"this capture into pool {pool.id} runs on {stream}, earlier ones ran on "
            f"{pool.stream}: the pool reuses memory within one stream only, so it will grow. "
            "Leave stream= out, or name the same stream for each capture.",
            RuntimeWarning,
            stacklevel=2,
        )

    def retire(self, pool: TorchPool) -> None:
        """Takes the streams of a pool that no graph uses any more."""
        with self._lock:
            free = self._free.setdefault(pool.device, [])
            while pool.lanes:
                # Never twice, whatever interrupts this.
                free.append(pool.lanes.popitem()[1])
            pool.stream = None

    def spoil(self, pool: TorchPool) -> None:
        """Takes the streams of bodies that broke, for good: a capture may still be on them."""
        with self._lock:
            for depth in [depth for depth in pool.lanes if depth]:
                self._spoilt.append(pool.lanes.pop(depth))

    def _take(self, device: torch.device) -> Lane:
        free = self._free.setdefault(device, [])
        return free.pop() if free else self._make(device)

    def _make(self, device: torch.device) -> Lane:
        torch.cuda.init()
        base = self._bases("cuda")
        there = base.resolve_device(index_of(device))
        anchor = base.pool_create(there)  # It takes no memory until something allocates from it.
        native = base.side_stream(there, anchor)
        handle = base.resolve_stream(native, there)
        return Lane(native, anchor, torch.cuda.ExternalStream(handle, device=device))


def as_torch_stream(bases: Bases, stream: object, device: torch.device) -> torch.cuda.Stream:
    """A torch stream for anything that names a stream on a CUDA ``device``.

    Raises:
        ArgumentTypeError: It is no stream.
        ArgumentError: It is a stream of another device.
    """
    handle = stream_handle(stream, device)
    if isinstance(stream, torch.cuda.Stream):
        return stream
    if handle is None:
        base = bases("cuda")
        handle = base.resolve_stream(stream, base.resolve_device(index_of(device)))
    if handle == 0:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle, device=device)
