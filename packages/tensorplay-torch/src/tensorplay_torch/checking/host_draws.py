"""Random numbers that Python code draws on the host: from which library, and where.

A graph would repeat what its capture drew. The standard library's generators, ``os.urandom`` and
changes of torch's generators by hand are seen as they are called, NumPy's functions as they are
called through ``numpy.random``. NumPy's generator objects are compared before and after.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from tensorplay_torch.tracking.culprit import outside

__all__ = ["HostDraws"]

BY_HAND = frozenset({"manual_seed", "seed", "set_state", "set_offset"})
WAITS = frozenset({"_cuda_synchronize"})
WAITING_METHODS = frozenset({"synchronize", "query"})
LIBRARIES = frozenset({"numpy", "random", "secrets", "tempfile", "uuid"})
"""Whose frames stand between the user's line and the draw."""

Note = Callable[[str, str, str], None]


class HostDraws:
    """A context manager; everything is as it was when it is left.

    Args:
        note: Called with what happened: ``"draw"``, ``"seed"`` or ``"wait"``, the name of what was
            called, and the user's ``"file:line"``, ``""`` where that is not known.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._before: Any = None
        self._patched: list[tuple[str, Any]] = []
        self._numpy: list[tuple[Any, Any]] = []
        self._python: dict[int, tuple[random.Random, Any]] = {}
        self._shared: Any = None
        self._noted = False

    def __enter__(self) -> HostDraws:
        self._watch_numpy()
        self._before = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        numpy = sys.modules.get("numpy")
        for name, function in self._patched:
            setattr(numpy.random, name, function)  # type: ignore[union-attr]
        for generator, state in self._numpy:
            if repr(_state(generator)) == repr(state):
                continue
            if generator is not self._shared or not self._noted:
                self._note("draw", f"numpy.random.{type(generator).__name__}", "")
            _set_state(generator, state)
        for one, state in self._python.values():
            one.setstate(state)

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call":
            return
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(owner, random.Random):
            if name in ("getstate", "setstate"):
                return
            if id(owner) not in self._python:
                self._python[id(owner)] = (owner, owner.getstate())
            self._note("seed" if name == "seed" else "draw", f"random.{name}", _place(frame))
        elif name == "urandom":
            self._note("draw", "os.urandom", _place(frame))
        elif name in BY_HAND and isinstance(owner, torch.Generator):
            self._note("seed", f"torch.Generator.{name}", _place(frame))
        elif name in WAITS or (name in WAITING_METHODS and _waits(owner)):
            self._note("wait", _spelled(owner, name), _place(frame))

    def _watch_numpy(self) -> None:
        numpy = sys.modules.get("numpy")
        made = getattr(numpy, "random", None)
        kinds = [getattr(made, name, None) for name in ("RandomState", "Generator")]
        if made is None or None in kinds:
            return
        self._numpy = [(one, _state(one)) for one in gc.get_objects() if type(one) in kinds]
        self._shared = shared = getattr(made.get_state, "__self__", None)
        for name, function in list(vars(made).items()):
            if shared is not None and getattr(function, "__self__", None) is shared:
                self._patched.append((name, function))
                setattr(made, name, self._noting(name, function))

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            if name not in ("get_state", "set_state"):
                self._noted = True
                kind = "seed" if name == "seed" else "draw"
                self._note(kind, f"numpy.random.{name}", _place(sys._getframe(1)))
            return function(*args, **kwargs)

        return noting


def _place(frame: FrameType | None) -> str:
    while frame is not None and not _users(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _users(frame: FrameType) -> bool:
    library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return outside(frame) and library not in LIBRARIES


def _waits(owner: Any) -> bool:
    return isinstance(owner, torch.Stream | torch.Event | torch.cuda.Stream | torch.cuda.Event)


def _spelled(owner: Any, name: str) -> str:
    return "torch.cuda.synchronize" if name in WAITS else f"{type(owner).__name__}.{name}"


def _state(generator: Any) -> Any:
    if hasattr(generator, "get_state"):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def _set_state(generator: Any, state: Any) -> None:
    if hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state
