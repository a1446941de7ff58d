"""What of torch's own state in this thread a capture must leave as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from tensorplay_torch._private import PRIVATE
from tensorplay_torch.compiled import parts
from tensorplay_torch.resources.devices import current_index, index_of
from tensorplay_torch.resources.streams import Current

from . import turns

__all__ = ["Entered", "Surroundings", "steady_streams", "surroundings"]


def _switches() -> Iterator[tuple[Callable[[bool], object], Callable[[], object], bool]]:
    """Of torch's switches: what sets one, what reads it, and how captures want it."""
    for name, wanted in (("override_stale_stream", True), ("warn_of_streams", False)):
        write, read = PRIVATE[f"set_{name}"].value, PRIVATE[name].value
        if write is not None:
            yield write, read or partial(bool, not wanted), wanted


SWITCHES = tuple(_switches())


class Surroundings:
    """Grad mode and autocast of this thread, as they were when this was made. A call restores them.

    Autocast keeps the low-precision copies of parameters it has made, per thread. A copy made
    before a capture would be a frozen input of the graph, one made in a capture would reach eager
    code before any replay has filled it, so the copies are dropped on either side.
    """

    __slots__ = ("_cache", "_cpu", "_cuda", "_grad")

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._cpu = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        self._cuda = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        self._cache = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()

    def __call__(self) -> None:
        """Puts them back."""
        torch.set_grad_enabled(self._grad)
        for kind, (enabled, dtype) in (("cpu", self._cpu), ("cuda", self._cuda)):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self._cache)
        torch.clear_autocast_cache()


_compiled = parts()
_around: Callable[[], Callable[[], None]] = Surroundings if _compiled is None else _compiled.Around


def surroundings() -> Callable[[], None]:
    """Makes one, in C++ where that is built.

    Grad mode stays as it is where inference mode is another by then: to enter or leave that sets
    both, and what the user left is not put back.
    """
    restore, inference = _around(), torch.is_inference_mode_enabled()

    def put_back() -> None:
        if torch.is_inference_mode_enabled() == inference:
            restore()
            return
        grad = torch.is_grad_enabled()
        try:
            restore()
        finally:
            torch.set_grad_enabled(grad)

    return put_back


class _Streams:
    """How autograd treats gradients of tensors whose node remembers another stream.

    Such a node is alive with an autograd graph of an earlier forward. A capture has it run on the
    capture's stream, where torch can do that (2.13); and no warning is due to the user, who has no
    say in which streams captures and their warm-ups run on.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: list[bool] = []
        for write, read, wanted in SWITCHES:
            before = bool(read())
            self._before.append(before)
            if before != wanted:
                write(wanted)

    def restore(self) -> None:
        """Puts that back."""
        for (write, read, wanted), before in zip(SWITCHES, self._before, strict=True):
            if before != wanted or bool(read()) != before:
                write(before)


@contextmanager
def steady_streams(device: torch.device) -> Iterator[None]:
    """For warm-ups that run a backward pass on a stream of this package's."""
    if device.type != "cuda":
        yield
        return
    before = _Streams()
    try:
        yield
    finally:
        before.restore()


class Entered:
    """What a capture on CUDA takes of its thread: the turn, device and stream, torch's settings.

    Entered as a context it gives all that back at the exit.

    Args:
        stream: Current from here on, on its device.

    Raises:
        CaptureError: This thread has a capture under way.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        turns.take(stream)
        self._restore, self._streams = surroundings(), _Streams()
        self._index, self._device = index_of(stream.device), current_index()
        self._stream = Current(stream)
        try:
            if self._device != self._index:
                torch.cuda.set_device(self._index)
            self._stream.__enter__()
        except BaseException:
            self._give_back()
            raise

    def here(self) -> AbstractContextManager[Any]:
        """Makes the capture's device and stream current, if the user made others so."""
        if current_index() == self._index and self._stream.is_current():
            return nullcontext()
        return torch.cuda.stream(self._stream.stream)

    def leave(self) -> None:
        """Gives everything back."""
        try:
            self._stream.__exit__()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        try:
            if self._device != self._index:
                torch.cuda.set_device(self._device)
            self._restore()
            self._streams.restore()
        finally:
            turns.give()

    def __enter__(self) -> None:
        return

    def __exit__(self, *error: object) -> None:
        self.leave()
