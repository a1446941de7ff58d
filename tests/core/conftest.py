from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tensorplay_core.discovery import find_workbench, load_card
from tensorplay_core.protocols import CaptureOptions
from tensorplay_core.runtime import Runtime, select
from tensorplay_core.testing.facade import Facade


class Host:
    """A host driver of its own, and the shortest way to a capture on it."""

    def __init__(self) -> None:
        self.runtime = Runtime(load_card("host").load(), name="host")
        self.driver: Any = self.runtime.driver
        self.pool: Any = None

    def begin(
        self, mode: Any = "global", *, pool: Any = None, stream: Any = None, **options: Any
    ) -> Any:
        self.pool = pool or self.runtime.pool_create("host")
        if stream is None:
            stream = self.runtime.side_stream("host", self.pool)
        return self.runtime.graph_begin("host", stream, self.pool, mode, CaptureOptions(**options))

    @contextmanager
    def capture(self, mode: Any = "global", **options: Any) -> Iterator["Captured"]:
        """Yields what will hold the template."""
        made = Captured(self.begin(mode, **options))
        try:
            yield made
        except BaseException as error:
            self.runtime.graph_abort(made.capture, error)
            raise
        made.template = self.runtime.graph_end(made.capture)

    def executable(self, captured: "Captured") -> Any:
        return self.runtime.graph_instantiate(captured.template)

    @contextmanager
    def body(self, body: Any) -> Iterator[None]:
        self.runtime.conditional_enter(body)
        yield
        self.runtime.conditional_exit(body)


class Captured:
    def __init__(self, capture: Any) -> None:
        self.capture = capture
        self.template: Any = None


@pytest.fixture
def host() -> Host:
    return Host()


class Cuda:
    """The driver, its workbench and the graph API bound to it."""

    def __init__(self) -> None:
        self.runtime: Runtime = select("cuda")
        self.driver: Any = self.runtime.driver
        self.device: Any = self.runtime.resolve_device(None)
        self.bench: Any = find_workbench("cuda")(self.runtime, self.device)
        self.facade = Facade(self.bench)
        self.total: Any = self.bench.buffer([0.0])

    def native(self, name: str, *arguments: Any) -> Any:
        """One unchecked native call: its result alone."""
        with self.driver.activated(self.device):
            return self.driver.cu.raw(name)(*arguments)[0]

    def works(self, total: Any) -> None:
        """Asserts that a capture made now works; ``total`` is a buffer of 0.0."""
        assert self.bench.read(total) == [0.0]
        made = self.facade.record(lambda: self.bench.add_(total, 1.0))
        made.replay()
        assert self.bench.read(total) == [1.0]

    @contextmanager
    def foreign(self, mode: str = "RELAXED") -> Iterator[Any]:
        """A capture that another library makes, adopted; the block yields it and its stream."""
        stream = self.bench.stream()
        modes = self.driver.native.CUstreamCaptureMode
        self.native(
            "cuStreamBeginCapture", stream.handle, getattr(modes, f"CU_STREAM_CAPTURE_MODE_{mode}")
        )
        with self.bench.on(stream):
            yield self.runtime.graph_adopt(stream, "a test"), stream


@pytest.fixture(scope="module")
def cuda() -> Cuda:
    """On a GPU."""
    return Cuda()
