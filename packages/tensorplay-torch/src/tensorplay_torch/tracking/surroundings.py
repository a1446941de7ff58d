"""What of torch's own state in this thread a capture must leave as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

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

    Grad mode stays as it is where inference mode is another by then: to enter or leave that sets
    both, and what the user left is not put back.

    Autocast keeps the low-precision copies of parameters it has made, per thread. A copy made
    before a capture would be a frozen input of the graph, one made in a capture would reach eager
    code before any replay has filled it, so the copies are dropped on either side.
    """

    __slots__ = ("_cache", "_cpu", "_cuda", "_grad", "_inference")

    def __init__(self) -> None:
        self._grad, self._inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._cpu = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        self._cuda = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        self._cache = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()

    def __call__(self) -> None:
        """Puts them back."""
        if torch.is_inference_mode_enabled() == self._inference:
            torch.set_grad_enabled(self._grad)
        for kind, (enabled, dtype) in (("cpu", self._cpu), ("cuda", self._cuda)):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self._cache)
        torch.clear_autocast_cache()


_compiled = parts()
surroundings: Callable[[], Callable[[], None]] = (
    Surroundings if _compiled is None else _compiled.Around
)
"""Makes one, in C++ where that is built."""

Switched: TypeAlias = list[tuple[Callable[[bool], object], bool]]
"""What sets a switch of torch's, and what it was."""


def _switches_now() -> Switched:
    return [(write, bool(read())) for write, read, _ in SWITCHES]


def _switch() -> None:
    """Sets how autograd treats gradients of tensors whose node remembers another stream.

    Such a node is alive with an autograd graph of an earlier forward. A capture has it run on the
    capture's stream, where torch can do that (2.13); and no warning is due to the user, who has no
    say in which streams captures and their warm-ups run on.
    """
    for write, _, wanted in SWITCHES:
        write(wanted)


def _switch_back(switched: Switched) -> None:
    for write, before in switched:
        write(before)


@contextmanager
def steady_streams(device: torch.device) -> Iterator[None]:
    """For warm-ups that run a backward pass on a stream of this package's."""
    if device.type != "cuda":
        yield
        return
    switched = _switches_now()
    try:
        _switch()
        yield
    finally:
        _switch_back(switched)


_HERE = nullcontext()


class Entered:
    """What a capture on CUDA takes of its thread: the turn, device and stream, torch's settings.

    Args:
        stream: Current while entered, on its device.
        before: Ordinal of the device that is current now.
    """

    def __init__(self, stream: torch.cuda.Stream, before: int) -> None:
        self._stream = Current(stream)
        self._index, self._device = index_of(self._stream.device), before
        self._restore: Callable[[], None] | None = None
        self._switched: Switched = []
        self._turn: list[bool] = []
        self._mine = False

    def enter(self) -> None:
        """Takes it. ``leave`` gives back as much as was taken by then.

        Raises:
            CaptureError: This thread has a capture under way.
        """
        turns.refuse_second(self._stream.stream)
        self._mine = True  # There may be something to give back from here on.
        turns.take(self._turn)
        self._restore, self._switched = surroundings(), _switches_now()
        _switch()
        if self._device != self._index:
            torch.cuda.set_device(self._index)
        self._stream.__enter__()

    def here(self) -> AbstractContextManager[Any]:
        """Makes the capture's device and stream current, if the user made others so."""
        if current_index() == self._index and self._stream.is_current():
            return _HERE
        return torch.cuda.stream(self._stream.stream)

    def leave(self) -> None:
        """Gives everything back. Idempotent."""
        if not self._mine:
            return
        try:
            self._put_back()
        except Exception:
            self._let_others()
            raise
        self._let_others()

    def _put_back(self) -> None:
        self._stream.__exit__()
        if self._device != self._index:
            torch.cuda.set_device(self._device)
        if self._restore is not None:
            self._restore()
        _switch_back(self._switched)

    def _let_others(self) -> None:
        turns.give(self._turn)
        self._mine = False
