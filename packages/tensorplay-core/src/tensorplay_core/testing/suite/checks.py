"""What the suite asserts again and again: errors of four parts, and that nothing else changed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tensorplay_core import reclaim
from tensorplay_core.errors import TensorplayError
from tensorplay_core.testing.facade import Facade

__all__ = ["captures_again", "four_parts", "refused", "unchanged"]


def four_parts(error: TensorplayError) -> None:
    """Asserts that the error says what was done, to what, what was met, what to do."""
    for part in (error.doing, error.subject, error.met, error.remedy):
        assert isinstance(part, str)
        assert part.strip()
        assert part in str(error)


def _around(facade: Facade) -> dict[str, object]:
    return {
        "surroundings": facade.bench.surroundings(),
        "current stream": facade.bench.runtime.current_stream(facade.bench.device),
        "capturing": facade.capturing(),
        "live captures": reclaim.captures_live(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
    }


@contextmanager
def unchanged(facade: Facade) -> Iterator[None]:
    """Asserts that the surroundings after the block, however it ends, are those before it."""
    before = _around(facade)
    try:
        yield
    finally:
        after = _around(facade)
    assert after == before


def captures_again(facade: Facade) -> None:
    """Asserts that a capture made now works."""
    bench = facade.bench
    total, step = bench.buffer([1.0, 2.0]), bench.buffer([10.0, 20.0])
    made = facade.record(lambda: bench.add_(total, step))
    assert bench.read(total) == [1.0, 2.0]
    made.replay()
    assert bench.read(total) == [11.0, 22.0]
    made.close()


@contextmanager
def refused(
    facade: Facade, kind: type[TensorplayError]
) -> Iterator[pytest.ExceptionInfo[TensorplayError]]:
    """Asserts that the block raises ``kind`` with four parts and leaves no trace."""
    with unchanged(facade), pytest.raises(kind) as caught:
        yield caught
    four_parts(caught.value)
    captures_again(facade)
