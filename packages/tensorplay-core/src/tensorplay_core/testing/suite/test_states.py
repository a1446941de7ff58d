"""Of a graph used out of order: each refused, and nothing lost."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tensorplay_core.errors import (
    ArgumentTypeError,
    GraphStateError,
    TensorplayError,
)
from tensorplay_core.testing.facade import Facade
from tensorplay_core.testing.workbench import Workbench

from .checks import captures_again, four_parts, refused, unchanged


def test_a_capture_is_begun_once(workbench: Workbench, facade: Facade) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    made.capture_begin()
    with pytest.raises(GraphStateError) as caught:
        made.capture_begin()
    four_parts(caught.value)
    workbench.add_(total, 1.0)
    made.capture_end()
    made.replay()
    assert workbench.read(total) == [1.0]


def test_a_captured_graph_is_reset_before_it_captures_again(
    workbench: Workbench, facade: Facade
) -> None:
    total = workbench.buffer([0.0])
    made = facade.record(lambda: workbench.add_(total, 1.0))
    with refused(facade, GraphStateError):
        made.capture_begin()
    made.replay()
    assert workbench.read(total) == [1.0]


@pytest.mark.parametrize(
    "name",
    ["capture_end", "replay", "instantiate", "upload", "raw_cuda_graph", "raw_cuda_graph_exec"],
)
@pytest.mark.parametrize("state", ["empty", "reset", "failed"])
def test_what_needs_a_capture_is_refused_without(
    workbench: Workbench, facade: Facade, name: str, state: str
) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    if state == "reset":
        with facade.capture(made):
            workbench.add_(total, 1.0)
        made.reset()
    if state == "failed":
        with pytest.raises(KeyError), facade.capture(made):
            workbench.add_(total, 1.0)
            raise KeyError
    with refused(facade, GraphStateError):
        getattr(made, name)()
    assert workbench.read(total) == [0.0]


@pytest.mark.parametrize("name", ["replay", "instantiate", "upload"])
def test_a_graph_is_not_run_while_it_captures(
    workbench: Workbench, facade: Facade, name: str
) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    with facade.capture(made):
        workbench.add_(total, 1.0)
        with pytest.raises(GraphStateError) as caught:
            getattr(made, name)()
    four_parts(caught.value)
    made.replay()
    assert workbench.read(total) == [1.0]


def test_a_capture_is_ended_by_the_thread_that_began_it(
    workbench: Workbench, facade: Facade
) -> None:
    total, made, met = workbench.buffer([0.0]), facade.new(), []

    def end() -> None:
        for use in (made.capture_end, made.reset):
            try:
                use()
            except TensorplayError as error:
                met.append(error)

    with facade.capture(made):
        workbench.add_(total, 1.0)
        other = threading.Thread(target=end)
        other.start()
        other.join()
    assert [type(error) for error in met] == [GraphStateError] * 2
    made.replay()
    assert workbench.read(total) == [1.0]


def test_a_reset_discards_the_capture_under_way(workbench: Workbench, facade: Facade) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    with unchanged(facade):
        made.capture_begin()
        workbench.add_(total, 1.0)
        made.reset()
    captures_again(facade)
    assert workbench.read(total) == [0.0]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("state", ["empty", "captured"])
def test_a_graph_is_not_copied(
    workbench: Workbench, facade: Facade, how: Callable[[Any], Any], state: str
) -> None:
    total, made = workbench.buffer([0.0]), facade.new()
    if state == "captured":
        with facade.capture(made):
            workbench.add_(total, 1.0)
    with refused(facade, ArgumentTypeError):
        how(made)
    if state == "captured":
        made.replay()
        assert workbench.read(total) == [1.0]
