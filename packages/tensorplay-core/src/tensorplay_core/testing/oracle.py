"""A program captured, and the same program run eagerly beside it on memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorplay_core.graph import CUDAGraph

from .facade import Facade
from .interpreter import Control, Eager, Functions, Memory, Methods, Nodes, run
from .programs import Inputs, Program
from .workbench import Workbench

__all__ = ["FORMS", "Recording", "churn"]

FORMS: dict[str, Callable[[CUDAGraph, str], Control]] = {
    "nodes": lambda made, _: Nodes(made),
    "methods": lambda made, _: Methods(made),
    "functions": Functions,
}
"""The three forms of conditionals, by name: what to capture a program with."""


def churn(bench: Workbench, length: int = 3, count: int = 16) -> None:
    """Makes and drops buffers full of another value: memory given back too early is overwritten."""
    filled = [bench.buffer([-77.0] * length) for _ in range(count)]
    doubled = [bench.double(buffer) for buffer in filled]
    bench.synchronize()
    del filled, doubled


class Recording:
    """One program as a graph, and its oracle.

    Args:
        bench: The workbench.
        program: What to capture.
        form: Key of ``FORMS``.
        pool: As in ``graph()``.
        options: Further keyword arguments of ``graph()``.
    """

    def __init__(
        self,
        bench: Workbench,
        program: Program,
        *,
        form: str = "nodes",
        pool: object = None,
        **options: Any,
    ) -> None:
        self.bench, self.program, self.form, self.pool = bench, program, form, pool
        self.options = options
        self.static = Memory(bench, program)
        self.mirror = Memory(bench, program)
        self.facade = Facade(bench)
        self.graph = self.facade.new()

    def capture(self, program: Program | None = None) -> None:
        """Captures the program, or another one on the same buffers."""
        if program is not None:
            self.static.program = self.mirror.program = program
        self.static.prepare()
        control = FORMS[self.form](self.graph, self.bench.runtime.name)
        # An exception would keep the frames of `run` alive, and they the literals.
        with self.facade.capture(self.graph, self.pool, **self.options):
            run(self.static, control)

    def feed(self, inputs: Inputs) -> None:
        """Writes the same fresh inputs for both."""
        self.static.feed(inputs)
        self.mirror.feed(inputs)

    def replay(self, stream: object = None) -> None:
        """Launches the graph once and runs the program eagerly once."""
        self.graph.replay(stream)
        self.bench.synchronize()
        self.mirror_once()

    def mirror_once(self) -> None:
        """Runs the program eagerly once."""
        self.mirror.prepare()
        run(self.mirror, Eager(self.bench))

    def differences(self) -> dict[str, tuple[bytes | None, bytes | None]]:
        """Buffers whose bytes differ from eager's, as ``name: (replayed, eager)``."""
        replayed, eager = self.static.read(), self.mirror.read()
        return {
            name: (replayed.get(name), eager.get(name))
            for name in replayed.keys() | eager.keys()
            if replayed.get(name) != eager.get(name)
        }

    def close(self) -> None:
        """Ends the graph and forgets all buffers."""
        self.graph.close()
        for memory in (self.static, self.mirror):
            memory.buffers.clear()
            memory.results.clear()
