"""Python's garbage collector ends graphs when it likes: inside any other call, under its locks."""

from __future__ import annotations

import pytest

from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.moments import Moments, in_a_thread

pytestmark = [
    pytest.mark.needs("pool_create", "pool_release"),
    pytest.mark.usefixtures("frozen_heap"),
]


def _lifetime(facade: Facade) -> list[float]:
    """One graph from its making to its end, and what it computed."""
    bench = facade.bench
    x = bench.buffer([1.0, 2.0])
    made, pool = facade.new(), facade.pool()
    with facade.capture(made, pool, capture_error_mode="thread_local"):
        result = bench.double(bench.double(x))
    made.replay()
    bench.synchronize()
    found: list[float] = bench.read(result)
    made.close()
    return found


def test_a_finaliser_may_end_another_graph_at_any_moment(facade: Facade) -> None:
    _lifetime(facade)
    reference = Moments(0, lambda: None)
    assert in_a_thread(lambda: _lifetime(facade), reference) == [4.0, 8.0]
    x = facade.bench.buffer([1.0])
    for number in reference.first.values():
        other = facade.record(lambda: facade.bench.double(x))
        moments = Moments(number, other.close)
        assert in_a_thread(lambda: _lifetime(facade), moments) == [4.0, 8.0], moments.where
