"""What puts things back must run to its end, also when Ctrl-C breaks into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["through"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def through(
    undo: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Calls ``undo``, which is idempotent; once more if an interrupt broke into it.

    Raises:
        BaseException: What broke in, once everything is undone.
    """
    try:
        return undo(*args, **kwargs)
    except BaseException as met:
        if not isinstance(met, Exception):
            undo(*args, **kwargs)
        raise
