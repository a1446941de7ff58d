"""The calls of CUDA's driver, which are only noted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

native = pytest.importorskip("cuda.bindings.driver")


class Driver:
    """The bindings' types over calls that only note that they were made.

    Attributes:
        made: ``(name, arguments)`` of each call, in order.
        answers: What a call returns beyond its result, by name.
    """

    def __init__(self, version: int) -> None:
        self.__name__ = "played"  # Else calls would be looked for beneath the bindings.
        self.made: list[tuple[str, tuple[Any, ...]]] = []
        self.frontier: list[Any] = []
        self.serial = 100
        self.answers: dict[str, Callable[..., Any]] = {
            "cuDriverGetVersion": lambda: version,
            "cuDeviceGetCount": lambda: 1,
            "cuStreamGetCaptureInfo": lambda stream: (
                1,
                9,
                "graph",
                self.frontier,
                [],
                len(self.frontier),
            ),
            "cuGraphConditionalHandleCreate": lambda *_: self.next(),
            "cuGraphAddNode": self.add,
            "cuStreamUpdateCaptureDependencies": self.depend,
            "cuModuleGetFunction": lambda module, name: name,
            "cuFuncGetParamInfo": self.parameters,
            "cuThreadExchangeStreamCaptureMode": lambda mode: 0,
            "cuCtxGetCurrent": lambda: 0,
        }

    def __getattr__(self, name: str) -> Any:
        if name.endswith(("_v2", "_v3")):
            raise AttributeError(name)
        if not name.startswith("cu"):
            return getattr(native, name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.made.append((name, arguments))
            answer = self.answers.get(name, lambda *_: self.next())(*arguments)
            if name == "cuFuncGetParamInfo" and answer is None:
                return (1, None, None)
            return (0, *answer) if isinstance(answer, tuple) else (0, answer)

        return call

    def next(self) -> int:
        self.serial += 1
        return self.serial

    def add(self, graph: Any, nodes: Any, edges: Any, count: int, asked: Any) -> int:
        self.sizes = [*getattr(self, "sizes", []), asked.conditional.size]
        return self.next()

    def depend(self, stream: Any, nodes: list[Any], *_: Any) -> int:
        self.frontier = list(nodes)
        return 0

    def parameters(self, function: Any, place: int) -> Any:
        sizes = (8, 8, 8, 8, 4) if function == b"tensorplay_set_condition" else (8, 8)
        return (8 * place, sizes[place]) if place < len(sizes) else None

    def names(self, *wanted: str) -> list[str]:
        return [name for name, _ in self.made if name in wanted]
