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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .code import is_library
from .kinds import is_of_users, items_of

__all__ = ["Ran", "Runs"]

LONG = 128
"""A longer list is data."""
WHOLE = (torch.nn.Module, type, types.ModuleType)
WITHIN = 2
"""How many containers in one another are looked into."""
MOST = 20_000
"""So many different calls are kept, at most."""
# Reentrant, because a signal handler may capture in the midst of its holder.
_lock = threading.RLock()


class Ran:
    """One function that ran, and what it was given.

    Args:
        code: The function's.
        around: Its globals.
        given: Modules and objects among its arguments, in its closure, and among what functions
            returned to it, with what it calls them.

    Attributes:
        code: The same.
        globals: The same.
    """

    def __init__(
        self, code: types.CodeType, around: dict[str, Any], given: Iterable[tuple[str, Any]]
    ) -> None:
        self.code, self.globals = code, around
        # Weakly, where that can be: most objects that a step makes are gone after it.
        self._given = [(name, _held(value)) for name, value in given]

    @property
    def given(self) -> list[tuple[str, Any]]:
        """What it was given, of that what is still there."""
        found = [(name, read()) for name, read in self._given]
        return [(name, value) for name, value in found if value is not None]


class _Alone:
    """Holds what cannot be held weakly, as long as others hold it too."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self) -> Any:
        # This object has it, and the call that asks.
        return self._value if sys.getrefcount(self._value) > 2 else None


def _held(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return _Alone(value)


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
        self._add(
            frame,
            [
                found
                for name in names
                if name in values
                for found in _objects(values[name], name, WITHIN)
            ],
        )

    def note_return(self, frame: types.FrameType, value: Any) -> None:
        """A function returns ``value``, which the one that called it may read."""
        caller = frame.f_back
        if caller is None or len(self._noted) >= MOST:
            return
        if not self.is_users(caller.f_code, caller.f_globals):
            return
        if found := list(_objects(value, f"{frame.f_code.co_name}()", 1)):
            self._add(caller, found)

    def _add(self, frame: types.FrameType, given: list[tuple[str, Any]]) -> None:
        key = (frame.f_code, *(id(value) for _, value in given))
        if key not in self._noted:
            self._noted[key] = Ran(frame.f_code, frame.f_globals, given)


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
    events, entry = _watching.events, (threading.get_ident(), runs)
    try:
        with _lock:
            _noting.append(entry)
            _watching.register_callback(_TOOL, events.PY_START, _begun)
            _watching.register_callback(_TOOL, events.PY_RETURN, _returned)
            _watching.set_events(_TOOL, events.PY_START | events.PY_RETURN)
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
    for runs in _those_that_note():
        runs.note(frame)
    return None


def _returned(code: types.CodeType, _: int, value: Any) -> Any:
    """A function returns, in any thread."""
    frame = sys._getframe(1)
    if not _is_users(code, frame.f_globals):
        return _watching.DISABLE
    for runs in _those_that_note():
        runs.note_return(frame, value)
    return None


def _those_that_note() -> list[Runs]:
    thread = threading.get_ident()
    # torch's own threads, which Python does not know, run what a backward calls.
    foreign = thread not in threading._active  # type: ignore[attr-defined]
    return [runs for ours, runs in tuple(_noting) if thread == ours or foreign]


@contextmanager
def _profiled(runs: Runs) -> Iterator[None]:
    """By Python's profiler, in this thread."""
    before: Any = sys.getprofile()
    if before is not None and not callable(before):  # One in C, which could not be put back.
        yield
        return
    known, note, note_return = runs._users, runs.note, runs.note_return

    def profile(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call":
            if known.get(frame.f_code, True):
                note(frame)
        elif event == "return" and argument is not None and known.get(frame.f_code, False):
            note_return(frame, argument)
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
    # By its type alone: to ask a proxy for its class would evaluate it.
    if issubclass(type(value), WHOLE) or is_of_users(value):
        yield name, value
    elif type(value) is types.MethodType:
        yield from _objects(value.__self__, f"{name}.__self__", depth)
    elif depth:
        for place, one in items_of(value, LONG):
            yield from _objects(one, f"{name}{place}", depth - 1)
