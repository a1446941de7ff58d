"""Logs each control call of a driver at DEBUG: started, complete with its time, or failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from typing import Any

from tensorplay_core.hookspecs import PROJECT, hookimpl
from tensorplay_core.runtime import NOUNS

__all__ = ["LogObserver"]

log = logging.getLogger("tensorplay_core.calls")


class LogObserver:
    """Events ``<hook>.started``, ``.complete`` and ``.failed`` on logger ``tensorplay_core.calls``.

    Launches are not among them: they make no hook call.
    """


def _logged(hook: str) -> Callable[[LogObserver], Generator[None, Any, Any]]:
    @hookimpl(wrapper=True, specname=f"{PROJECT}_{hook}")
    def watch(self: LogObserver) -> Generator[None, Any, Any]:
        if not log.isEnabledFor(logging.DEBUG):
            return (yield)
        log.debug("%s.started", hook)
        began = time.perf_counter()
        try:
            result = yield
        except BaseException as error:
            log.debug("%s.failed: %s", hook, error)
            raise
        log.debug("%s.complete in %.1f us", hook, (time.perf_counter() - began) * 1e6)
        return result

    return watch


for _hook in (hook for hooks in NOUNS.values() for hook in hooks):
    setattr(LogObserver, f"{PROJECT}_{_hook}", _logged(_hook))
