"""Parts of the hot path in C++, for those who build them; everything works without them.

``python -m tensorplay_torch.compiled`` builds them for the torch and the Python that run it, with a
C++ compiler and ninja, in half a minute. They are found and used from then on, and never by another
torch. ``TENSORPLAY_COMPILED=0`` leaves them out. What each does is what Python does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.autograd.graph import increment_version

from tensorplay_core.compiled.places import library, look_for, why_not

__all__ = ["BUILD", "Parts", "parts", "place", "summary", "written"]

SOURCES = Path(__file__).parent


class Parts(Protocol):
    """What is in the library. Sequences are lists or tuples."""

    def Forms(self, tensors: Sequence[Any], /) -> Callable[[Sequence[Any]], bool]:
        """A check of others against these: count, shape, strides, dtype, device, layout.

        It says yes to tensors and parameters of the same form, whatever their modes, and no to
        anything that needs a closer look.
        """

    def Unmoved(self, tensors: Sequence[Any], /) -> Callable[[], bool]:
        """Whether these have the classes, forms and addresses that they have now.

        And require grad or do not, as they do now.
        """

    def Same(
        self,
        whole: Sequence[list[Any] | dict[Any, Any]],
        parts: Sequence[tuple[dict[str, Any], Sequence[str]]] = (),
        sized: Sequence[dict[Any, Any]] = (),
        classed: Sequence[object] = (),
        named: Sequence[tuple[object, str]] = (),
        /,
    ) -> Callable[[], bool]:
        """Whether lists, dicts and attributes hold the very objects that they hold now.

        Of each in ``whole`` every entry counts, of each dict in ``parts`` its keys and the values
        of those beside it, of each in ``sized`` how many it has, of each object in ``classed`` its
        class and which dict has its attributes, of each in ``named`` the attribute beside it.
        """

    def Modes(self, kind: str, /) -> Callable[[], bool]:
        """Whether autocast on that kind of device and the default dtype are what they are now."""

    def Around(self) -> Callable[[], None]:
        """Puts back this thread's grad mode and autocast, as they are now.

        The copies of parameters that autocast keeps are dropped now and then.
        """

    def All(
        self, checks: Sequence[Callable[[], object]], otherwise: Callable[[], bool], /
    ) -> Callable[[], bool]:
        """True if all checks, asked in order, say yes; else what ``otherwise`` says."""

    def Rail(
        self,
        long_way: Callable[..., Any],
        static: Sequence[Any],
        results: Sequence[Any],
        track: tuple[Any, ...],
        functions: tuple[int, ...],
        current: Callable[[int], int],
        device: int,
        /,
    ) -> Callable[..., tuple[Any, ...]]:
        """A staged launch of what ``track`` leads to; see ``drivers.cuda.track`` of core.

        ``long_way`` serves what is unusual, ``functions`` are those that ``track`` names,
        ``current`` returns the current stream of ``device``.
        """

    def born(
        self,
        result: object,
        known: dict[int, bool],
        held: list[int],
        written: dict[int, int],
        clock: int,
        /,
    ) -> Sequence[Any]:
        """Takes in the storages of ``result`` that are no keys of ``known``, by their addresses.

        Each becomes one there with True, and in ``written`` with ``clock``, and is added to
        ``held``, as what its ``_weak_ref`` returned. What is not of torch's own classes is left,
        and returned.
        """

    def connect(
        self,
        backward: Callable[[Any, tuple[Any, ...], bool], Sequence[Any]],
        context: object,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        which: Sequence[int],
        always: bool,
        last: bool,
        /,
    ) -> None:
        """Makes ``outputs[n] for n in which`` results of ``inputs``, if any of these requires grad.

        ``backward(context, gradients, whole)`` returns one gradient for each input, or None.
        ``whole`` says that all gradients were asked for, not chosen ones. With ``always`` outputs
        require grad whatever inputs do. With ``last`` there is no second backward, and gradients of
        leaves that no code looks on at are added together.
        """

    def settled(self, parameters: Sequence[Any], buffers: Sequence[Any], /) -> bool:
        """True if each parameter's gradient is its buffer and none ever had hooks."""

    def aliases(self, buffers: Sequence[Any], /) -> tuple[Any, ...]:
        """Tensors over the same memory, without history; writes are counted together."""

    def strangers(self, values: Sequence[Any], known: dict[int, Any], /) -> Sequence[Any]:
        """The tensors among ``values``, in lists and tuples too, that need a closer look.

        Not those of torch's own classes whose storage, by its address, is a key of ``known``, if
        they are no leaves that require grad.
        """

    def versions(self, tensors: Sequence[Any], /) -> list[int]:
        """How often each was written."""

    def written(self, tensors: Sequence[Any], /) -> None:
        """Counts a write of each, as ``torch.autograd.graph.increment_version`` does."""


BUILD = "python -m tensorplay_torch.compiled"


def place() -> Path:
    """Where the library for this torch is, or would be."""
    sources = [*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]
    return library("parts", sources, torch.__version__, str(torch.version.git_version))


_parts: Parts | None = look_for(f"{__name__}.parts", place, BUILD)


def parts() -> Parts | None:
    """The library, or None: not built for this torch, or switched off."""
    return _parts


written: Callable[[Sequence[Any]], None] = increment_version if _parts is None else _parts.written
"""Counts a write of each of some tensors, for autograd to see."""


def summary() -> str:
    """One line on it, for ``describe``."""
    return "in use" if _parts is not None else why_not(place, BUILD)
