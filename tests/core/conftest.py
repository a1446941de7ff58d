from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tensorplay_core.discovery import load_card
from tensorplay_core.protocols import CaptureOptions
from tensorplay_core.runtime import Runtime


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
