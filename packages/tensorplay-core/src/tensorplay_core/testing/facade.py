"""The public graph API bound to one driver and device, as a framework's package binds it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

from tensorplay_core.capture import graph
from tensorplay_core.control_flow import cond, while_loop
from tensorplay_core.graph import CUDAGraph, is_current_stream_capturing
from tensorplay_core.pool import graph_pool_handle

from .workbench import Workbench

__all__ = ["Facade"]


@cache
def _bound(driver: str) -> type[CUDAGraph]:
    return type("CUDAGraph", (CUDAGraph,), {"driver": driver})


class Facade:
    """What the suite calls: every public name, for the driver and device of a workbench."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.driver = bench.runtime.name
        self.CUDAGraph = _bound(self.driver)

    def new(self, **options: Any) -> CUDAGraph:
        """An empty graph."""
        return self.CUDAGraph(device=self.bench.device, **options)

    def capture(self, into: CUDAGraph, pool: object = None, **options: Any) -> graph:
        """``graph(into, pool, ...)``."""
        return graph(into, pool, **options)

    def record(self, work: Callable[[], Any], pool: object = None, **options: Any) -> CUDAGraph:
        """A new graph with ``work`` captured."""
        made = self.new()
        with graph(made, pool, **options):
            work()
        return made

    def pool(self) -> Hashable:
        """``graph_pool_handle()``."""
        return graph_pool_handle(self.bench.device, driver=self.driver)

    def capturing(self) -> bool:
        """``is_current_stream_capturing()``."""
        return is_current_stream_capturing(driver=self.driver)

    def cond(
        self, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any
    ) -> Any:
        """``cond()``."""
        return cond(pred, true_fn, false_fn, *operands, driver=self.driver)

    def while_loop(
        self, test: Callable[..., Any], body: Callable[..., Any], carry: Any, **options: Any
    ) -> Any:
        """``while_loop()``."""
        return while_loop(test, body, carry, driver=self.driver, **options)
