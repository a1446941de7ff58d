"""Destruction and collection wait for the end of the last capture."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from tensorplay_core import reclaim


@pytest.fixture(autouse=True)
def balanced() -> Iterator[None]:
    assert reclaim.captures_live() == 0
    enabled = gc.isenabled()
    yield
    assert reclaim.captures_live() == 0
    assert gc.isenabled() == enabled


def test_without_a_capture_it_is_destroyed_at_once() -> None:
    done: list[int] = []
    reclaim.dispose(lambda: done.append(1))
    assert done == [1]


def test_during_captures_it_waits_for_the_last() -> None:
    done: list[int] = []
    reclaim.hold("first")
    reclaim.hold("second")
    reclaim.dispose(lambda: done.append(1))
    reclaim.release("second")
    reclaim.release("second")
    assert done == []
    reclaim.release("first")
    assert done == [1]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_put_back_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        reclaim.hold("capture")
        assert not gc.isenabled()
        reclaim.release("capture")
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_one_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    reclaim.hold("capture")
    reclaim.dispose(lambda: 1 / 0)
    reclaim.dispose(lambda: done.append(2))
    with caplog.at_level(logging.ERROR):
        reclaim.release("capture")
    assert done == [2]
    assert caplog.records


def test_a_finaliser_may_dispose_while_the_queue_drains() -> None:
    done: list[int] = []
    reclaim.hold("capture")
    reclaim.dispose(lambda: reclaim.dispose(lambda: done.append(1)))
    reclaim.release("capture")
    assert done == [1]
