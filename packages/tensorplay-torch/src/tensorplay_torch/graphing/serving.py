"""The callable that users call: it decides what a call goes to, and stays out of its way."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tensorplay_core.errors import GraphStateError
from tensorplay_torch.tracking.untraced import untraced

from .autocast import Autocast
from .calls import Call
from .candidate import Candidate, forward_of
from .group import Group
from .nesting import inside
from .watch import Watch

__all__ = ["CallCounts", "Graphed"]


class CallCounts(NamedTuple):
    """What became of the calls of a graphed callable."""

    replayed: int
    """Served by graphs."""
    eager: int
    """Served by the callable itself: in the other train/eval mode, or inside another capture."""
    captured: int
    """How often graphs were captured for it."""


class Graphed:
    """A callable served by graphs. As a module's ``forward`` it stands in the place of that one.

    Copies and pickles of it are the callable without graphs.

    Args:
        group: Those that were graphed together.
        place: This one's place among them.
        recapture: Capture again, in place of raising, when what the graphs depend on changed.
    """

    def __init__(self, group: Group, place: int, recapture: bool) -> None:
        candidate = group.candidates[place]
        module = candidate.module
        self._group, self._place, self._recapture = group, place, recapture
        self._entries = group.entries[place]
        self._device = candidate.device
        self._module = weakref.ref(module) if module is not None else None
        self._training = module.training if module is not None else False
        self._modes = candidate.modes()
        self._autocast = Autocast(candidate.device.type)
        self._eager = self._replayed = 0

    @property
    def counts(self) -> CallCounts:
        """What became of the calls so far."""
        return CallCounts(self._replayed, self._eager, self._entries.captured)

    @property
    def watch(self) -> Watch | None:
        """What looks for changes of what the graphs depend on; None while there are none."""
        return self._entries.watch

    def __repr__(self) -> str:
        state = "released" if self._entries.released else f"graphed on {self._device}"
        return f"<{self.candidate.subject}, {state}, {self.counts}>"

    @untraced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replays the callable for these arguments.

        Raises:
            SignatureMismatch: They, or autocast, differ from what was captured.
            StaleGraph: What the graphs read is not what it was at the capture.
            GraphStateError: It was released.
        """
        reference = self._module
        if reference is not None:
            module = reference()
            if module is None or module.training is not self._training:
                return self._without(args, kwargs)
        for attributes, training in self._modes:
            if attributes["training"] is not training:
                return self._without(args, kwargs)
        if inside(self._device):
            return self._without(args, kwargs)
        entries = self._entries
        differentiate = torch.is_grad_enabled()
        watch = entries.watch
        if watch is not None and (watch.look() if differentiate else watch.glance()):
            self._changed(args, kwargs)
        if difference := self._autocast.difference():
            raise self.candidate.arguments.mismatch(args, kwargs, also=[difference])
        call = entries.training if differentiate else entries.bare
        if call is None:
            call = self._captured(differentiate)
        try:
            result = call(args, kwargs)
        except GraphStateError:
            if call is (entries.training if differentiate else entries.bare):
                raise
            # Another thread has ended these graphs meanwhile, to capture anew or for good.
            if entries.released:
                raise self._ended() from None
            return self(*args, **kwargs)
        self._replayed += 1
        return result

    def release(self) -> None:
        """Ends the graphs and gives back their memory. Idempotent."""
        self._group.release(self._place)

    @property
    def original(self) -> Callable[..., Any]:
        """The callable without graphs."""
        return self.candidate.function

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        module = self._module() if self._module is not None else None
        copied = memo.get(id(module))
        return self.original if copied is None else self.candidate.on(copied)

    def __reduce__(self) -> tuple[Any, ...]:
        module = self._module() if self._module is not None else None
        if module is None or self.original is not self.candidate.on(module):
            return (_itself, (self.original,))
        return (forward_of, (module,))

    @property
    def candidate(self) -> Candidate:
        """The callable, and how it was called."""
        return self._group.candidates[self._place]

    def _without(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._eager += 1
        return self.original(*args, **kwargs)

    def _changed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watch = self._entries.watch
        if watch is None:  # Another thread has seen to it.
            return
        if not self._recapture:
            raise watch.error()
        self._group.renew(self._place, self.candidate.again(args, kwargs))

    def _captured(self, differentiate: bool) -> Call:
        entries = self._entries
        while not entries.released:
            if differentiate:
                self._group.capture_training()
            else:
                self._group.capture_bare(self._place)
            call = entries.training if differentiate else entries.bare
            if call is not None:
                return call
        raise self._ended()

    def _ended(self) -> GraphStateError:
        return GraphStateError(
            doing="calling",
            subject=self.candidate.subject,
            met="its graphs were released",
            remedy="Call what release() returned, or graph it again.",
        )


def _itself(value: Any) -> Any:
    return value
