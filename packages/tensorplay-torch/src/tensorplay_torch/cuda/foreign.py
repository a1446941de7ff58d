"""Captured work that no operation of torch's made, and the tensors that it is given.

Kernels of extension modules and of Triton, those that ``torch.compile`` made, and launches through
CuPy or the CUDA driver are nodes of the graph that a dispatch mode does not see. They are found by
count: nodes that came between one operation and the next. Where their parameters mention a live
tensor's memory, the graph uses that tensor. One that was let go before the end of the capture is
found no more.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from tensorplay_core.errors import DriverError
from tensorplay_torch._private import required
from tensorplay_torch.resources.bases import Gaps
from tensorplay_torch.tracking.dispatch import dispatches
from tensorplay_torch.tracking.operations import describe

__all__ = ["ForeignWork", "tensors_at"]


class ForeignWork:
    """A listener of ``CaptureDispatch`` that tells foreign work from that of operations.

    Args:
        gaps: Of the capture.

    Attributes:
        words: Every 64-bit value that foreign work was given; most are no addresses.
    """

    def __init__(self, gaps: Gaps) -> None:
        self.words: set[int] = set()
        self.look, self.pass_over, self.follow = gaps.look, gaps.pass_over, gaps.follow
        self._gaps = gaps

    def __bool__(self) -> bool:
        """True if there is any."""
        return bool(self._gaps)

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Looks whether nodes came since the last operation."""
        if not (isinstance(func, OpOverload) and describe(func).nodeless):
            self.look()

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """The nodes that came meanwhile are the operation's."""
        if not (isinstance(func, OpOverload) and describe(func).nodeless):
            self.pass_over()

    def read(self) -> None:
        """Looks for the last time, and reads ``words``."""
        self.look()
        if self:
            try:
                self.words = self._gaps.words()
            except DriverError:  # Of a broken capture nothing can be read: its end says why.
                self.words = set()


def tensors_at(words: Iterable[int], device: torch.device) -> Iterator[torch.Tensor]:
    """One tensor of each storage on ``device`` that begins at or contains one of ``words``."""
    sought = sorted(words)
    if not sought:
        return
    plain = required("disable_torch_function", "looking for tensors")
    met: set[int] = set()
    with plain():
        for tensor in _tensors():
            try:
                if tensor.device != device:
                    continue
                storage = tensor.untyped_storage()
                start, size = storage.data_ptr(), storage.nbytes()
            except (NotImplementedError, RuntimeError):  # It has no memory to speak of.
                continue
            place = bisect_left(sought, start)
            if start and place < len(sought) and sought[place] < start + size and start not in met:
                met.add(start)
                yield tensor


def _tensors() -> Iterator[torch.Tensor]:
    # By class, because asking an object for an attribute may run anything.
    everything = gc.get_objects()
    # One that takes operations apart wraps others, which are among these, or has no memory.
    kinds = {
        kind
        for kind in set(map(type, everything))
        if issubclass(kind, torch.Tensor) and not dispatches(kind)
    }
    return (one for one in everything if type(one) in kinds)
