"""Observers behind glass: whatever one does, the driver's result and its errors pass unchanged."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

from .hookspecs import PROJECT, hookimpl

__all__ = ["shielded"]

log = logging.getLogger(__name__)
Wrapper = Callable[..., Generator[None, Any, Any]]


def shielded(observer: object) -> SimpleNamespace:
    """A plugin with the wrappers of ``observer``, none of which can break or change a call.

    Raises:
        TypeError: It implements a hook as anything but a wrapper, and so would answer for the
            driver.
    """
    plugin = SimpleNamespace()
    for name in dir(observer):
        method = getattr(observer, name, None)
        options = getattr(method, f"{PROJECT}_impl", None)
        if not isinstance(options, dict) or method is None:
            continue
        if not options["wrapper"]:
            raise TypeError(
                f"{type(observer).__name__}.{name} is no wrapper: an observer's hooks are written "
                f"with @hookimpl(wrapper=True) and one yield."
            )
        hook = options["specname"] or name
        if hook != f"{PROJECT}_graph_abort":  # Unwinding a failure must not depend on observers.
            setattr(plugin, hook, hookimpl(wrapper=True)(_behind_glass(method)))
    return plugin


def _behind_glass(method: Wrapper) -> Wrapper:
    @functools.wraps(method)  # pluggy reads the argument names through it.
    def wrapper(*arguments: Any) -> Generator[None, Any, Any]:
        watching = _begin(method, arguments)
        try:
            result = yield
        except BaseException as error:
            _finish(method, watching, error=error)
            raise
        _finish(method, watching, result=result)
        return result

    # functools.wraps copies the mark of the original; the one set by the caller is meant.
    del wrapper.__dict__[f"{PROJECT}_impl"]
    return wrapper


def _begin(method: Wrapper, arguments: tuple[Any, ...]) -> Generator[None, Any, Any] | None:
    try:
        watching = method(*arguments)
        next(watching)
    except Exception:
        log.exception("observer %s failed before the call", method)
        return None
    return watching


def _finish(
    method: Wrapper,
    watching: Generator[None, Any, Any] | None,
    *,
    result: object = None,
    error: BaseException | None = None,
) -> None:
    if watching is None:
        return
    try:
        watching.send(result) if error is None else watching.throw(error)
    except StopIteration:
        return
    except BaseException as raised:
        if raised is not error:
            log.exception("observer %s failed after the call", method)
        return
    log.error("observer %s yielded twice", method)
    watching.close()
