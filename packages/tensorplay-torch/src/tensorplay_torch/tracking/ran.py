"""Which functions of the user's code ran while work was captured, and on what.

A replay runs none of them again: whatever their code reads by name, the graph stands on. What found
them (a hook, a decorator, a parent, an optimizer's step) does not matter. They are seen by Python's
monitoring, or its profiler before 3.12, in the thread that captures and, of monitoring, in torch's.
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .code import is_library
from .fixed import is_constant
from .held import CONTAINERS, is_of_library

__all__ = ["Ran", "Runs"]

LONG = 1000
"""A longer list is data."""
WITHIN = 2
"""How many containers in one another are looked into."""
MOST = 20_000
"""So many different calls are kept, at most."""
_lock = threading.Lock()


class Ran:
    """One function that ran, and what it was given.

    Args:
        code: The function's.
        around: Its globals.
        given: Modules and objects among its arguments and in its closure, with what it calls them.

    Attributes:
        code: The same.
        globals: The same.
        containers: Those in its closure, with what it calls them.
    """

    def __init__(
        self, code: types.CodeType, around: dict[str, Any], given: Iterator[tuple[str, Any]]
    ) -> None:
        self.code, self.globals = code, around
        self.containers: list[tuple[str, Any]] = []
        self._given: list[tuple[str, Any]] = []
        for name, value in given:
            try:
                # Weakly: most objects that a step makes are gone after it.
                self._given.append((name, weakref.ref(value)))
            except TypeError:
                continue

    @property
    def given(self) -> list[tuple[str, Any]]:
        """What it was given, of that what is still there."""
        found = [(name, reference()) for name, reference in self._given]
        return [(name, value) for name, value in found if value is not None]


class Runs:
    """See the module. Each different call is noted once.

    Attributes:
        calls: What ran.
    """

    def __init__(self) -> None:
        self._noted: dict[tuple[Any, ...], Ran] = {}
        self._users: dict[types.CodeType, bool] = {}

    @property
    def calls(self) -> list[Ran]:
        """What ran, in the order of the first time."""
        return list(self._noted.values())

    def clear(self) -> None:
        """Forgets it."""
        self._noted.clear()
        self._users.clear()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Notes what runs while entered. Profilers that are there go on."""
        with _monitored(self) if _TOOL is not None else _profiled(self):
            yield

    def is_users(self, code: types.CodeType, around: dict[str, Any]) -> bool:
        """True for code of the user's, with these globals."""
        users = self._users.get(code)
        if users is None:
            users = self._users[code] = _is_users(code, around)
        return users

    def note(self, frame: types.FrameType) -> None:
        """A function begins."""
        code = frame.f_code
        if not self.is_users(code, frame.f_globals) or len(self._noted) >= MOST:
            return
        values, count = frame.f_locals, code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args and **kwargs.
        names = (*code.co_varnames[:count], *code.co_freevars)
        given = [
            found
            for name in names
            if name in values
            for found in _objects(values[name], name, WITHIN)
        ]
        key = (code, *(id(value) for _, value in given))
        if key in self._noted:
            return
        ran = self._noted[key] = Ran(code, frame.f_globals, iter(given))
        ran.containers = [
            (name, values[name])
            for name in code.co_freevars
            if isinstance(values.get(name), CONTAINERS)
        ]


_watching: Any = getattr(sys, "monitoring", None)
"""Python's monitoring, from 3.12 on."""


def _free_tool() -> int | None:
    """A number for ``sys.monitoring``; None if there is none."""
    for number in (4, 3, 5) if _watching is not None else ():
        if _watching.get_tool(number) is None:
            _watching.use_tool_id(number, "tensorplay")
            return number
    return None


_TOOL = _free_tool()
_noting: list[tuple[int, Runs]] = []
"""Threads that note now, and what they note in."""


@contextmanager
def _monitored(runs: Runs) -> Iterator[None]:
    """By ``sys.monitoring``, to which library code costs nothing after its first call."""
    start, entry = _watching.events.PY_START, (threading.get_ident(), runs)
    try:
        with _lock:
            _noting.append(entry)
            _watching.register_callback(_TOOL, start, _begun)
            _watching.set_events(_TOOL, start)
        yield
    finally:
        with _lock:
            if entry in _noting:
                _noting.remove(entry)
            if not _noting:
                _watching.set_events(_TOOL, 0)


def _begun(code: types.CodeType, _: int) -> Any:
    """A function begins, in any thread."""
    frame = sys._getframe(1)
    if not _is_users(code, frame.f_globals):
        return _watching.DISABLE
    thread = threading.get_ident()
    # torch's own threads, which Python does not know, run what a backward calls.
    foreign = thread not in threading._active  # type: ignore[attr-defined]
    for ours, runs in tuple(_noting):
        if thread == ours or foreign:
            runs.note(frame)
    return None


@contextmanager
def _profiled(runs: Runs) -> Iterator[None]:
    """By Python's profiler, in this thread."""
    before: Any = sys.getprofile()
    if before is not None and not callable(before):  # One in C, which could not be put back.
        yield
        return
    known, note = runs._users, runs.note

    def profile(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call" and known.get(frame.f_code, True):
            note(frame)
        if before is not None:
            before(frame, event, argument)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_users(code: types.CodeType, around: dict[str, Any]) -> bool:
    if code.co_name.startswith("<") and code.co_name != "<lambda>":  # Part of another function.
        return False
    name = str(around.get("__name__", ""))
    # Named tuples are made with globals of their own.
    return not is_library(name) and not name.startswith("namedtuple_")


def _objects(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Modules, classes and objects of the user's that ``value``, called ``name``, is or holds."""
    if isinstance(value, torch.nn.Module | type | types.ModuleType):
        yield name, value
    elif isinstance(value, torch.Tensor | types.FunctionType) or is_constant(value):
        return
    elif isinstance(value, list | tuple):
        if depth and len(value) <= LONG:
            for place, one in enumerate(value):
                yield from _objects(one, f"{name}[{place}]", depth - 1)
    elif isinstance(value, dict):
        if depth and len(value) <= LONG:
            for key, one in list(value.items()):
                yield from _objects(one, f"{name}[{key!r}]", depth - 1)
    elif isinstance(value, types.MethodType):
        yield from _objects(value.__self__, f"{name}.__self__", depth)
    elif isinstance(getattr(value, "__dict__", None), dict) and not is_of_library(value):
        yield name, value
