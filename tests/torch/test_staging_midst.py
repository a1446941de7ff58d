"""Staged calls in the midst of others: of the same graph, of other threads, of work that runs."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_core import select
from tensorplay_core.testing.moments import Moments, in_a_thread

BUFFERS = {
    "dense": lambda device: torch.zeros(2, 3, device=device),
    "with gaps": lambda device: torch.zeros(2, 6, device=device)[:, ::2],
}


@pytest.mark.parametrize("name", BUFFERS)
def test_a_converting_call_in_the_midst_of_another_spoils_nothing(device: str, name: str) -> None:
    """What is copied ahead of the driver's own copies is not mixed with another call's."""
    x, y = (BUFFERS[name](device) for _ in range(2))
    total = torch.zeros(2, 3, device=device)
    made = tp.CUDAGraph(device=device)
    with tp.graph(made):
        total.add_(x)
        total.add_(y)

    def call(*values: float) -> None:
        made.stage_and_launch([x, y], [torch.full((2, 3), v, dtype=torch.float64) for v in values])

    def outer() -> None:
        call(1, 10)

    outer()
    reference = Moments(0, lambda: None)
    in_a_thread(outer, reference)
    for number in reference.first.values():
        served: list[bool] = []

        def within(served: list[bool] = served) -> None:
            with suppress(tp.ReplayError):
                call(100, 1000)
                served.append(True)

        total.zero_()
        moments = Moments(number, within)
        in_a_thread(outer, moments)
        assert total.unique().tolist() == [11.0 + 1100.0 * len(served)], moments.where


class Meddling:
    """Replaces a graph by another in the midst of its work."""

    def __init__(self) -> None:
        self.act: Any = None

    def __call__(self) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()


meddle: dict[int, Meddling] = {}


@torch.library.custom_op("staging::meddle", mutates_args=())
def meddling(x: torch.Tensor, which: int) -> torch.Tensor:
    meddle[which]()
    return x + 1


@meddling.register_fake
def _(x: torch.Tensor, which: int) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("form", ["replay", "plan"])
def test_an_update_in_the_midst_of_a_call_of_its_own_is_refused(form: str) -> None:
    meddle[1] = Meddling()
    x, made, other = torch.zeros(2), tp.CUDAGraph(device="cpu"), tp.CUDAGraph(device="cpu")
    with tp.graph(made):
        y = meddling(x, 1) + 0.0
    with tp.graph(other):
        meddling(x, 1) + 100.0
    plan = made.stage([x], results=[y])

    def act() -> None:
        with pytest.raises(tp.ReplayError, match="updating"):
            made.update(other)
        refused.append(True)

    refused: list[bool] = []
    meddle[1].act = act
    if form == "replay":
        made.replay()
        assert y.tolist() == [1.0] * 2
    else:
        (result,) = plan([torch.ones(2)])
        assert result.tolist() == [2.0] * 2
    assert refused
    assert made.update(other).in_place


@pytest.mark.parametrize("form", ["replay", "plan"])
def test_calls_of_two_threads_inside_each_other_do_not_wait_for_ever(form: str) -> None:
    x, both, outcomes = torch.zeros(2), threading.Barrier(2), []
    graphs, calls = [tp.CUDAGraph(device="cpu") for _ in range(2)], []
    for which, made in enumerate(graphs):
        meddle[which] = Meddling()
        with tp.graph(made):
            y = meddling(x, which) * 1
        plan = made.stage([x], results=[y])
        calls.append(made.replay if form == "replay" else partial(plan, [torch.ones(2)]))

    def act(other: int) -> None:
        both.wait(60)
        try:
            calls[other]()
            outcomes.append("served")
        except tp.ReplayError:
            outcomes.append("refused")

    for which in (0, 1):
        meddle[which].act = partial(act, 1 - which)
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "two calls wait for each other"
    assert sorted(outcomes) == ["refused", "served"]


def test_a_staged_call_of_work_that_runs_beside_a_capture_is_not_recorded() -> None:
    """A thread that captures on one stream may replay on another; what that calls runs at once."""
    meddle[1], x = Meddling(), torch.zeros(2)
    inner, outer = (tp.CUDAGraph(device="cpu") for _ in range(2))
    with tp.graph(inner):
        y = x * 3
    with tp.graph(outer):
        meddling(x, 1)
    plan, other, results = inner.stage([x], results=[y]), select("torch"), []
    stream = other.side_stream(other.resolve_device("cpu"), other.pool_create(torch.device("cpu")))

    def act() -> None:
        with pytest.raises(tp.ReplayError):
            outer.replay(stream)
        results.extend(plan([torch.full((2,), 2.0)]))

    meddle[1].act = act
    with tp.graph(tp.CUDAGraph(device="cpu")) as made:
        outer.replay(stream)
        z = x + 1
    assert [one.tolist() for one in results] == [[6.0] * 2]
    assert made.topology.kinds() == {"kernel": 1}
    made.replay()
    assert z.tolist() == [3.0] * 2


STATIC = {
    "plan": lambda: torch.zeros(4),
    "converting": lambda: torch.zeros(4, dtype=torch.float64),
    "gaps": lambda: torch.zeros(8)[::2],
}


@pytest.mark.parametrize("name", STATIC)
def test_a_staged_call_inside_a_capture_is_recorded(name: str) -> None:
    x, source = STATIC[name](), torch.ones(4)
    with tp.graph(tp.CUDAGraph(device="cpu")) as g:
        y = x * 2 + 1
    plan = g.stage([x], [y])
    with tp.graph(tp.CUDAGraph(device="cpu")) as outer:
        if name == "plan":
            (z,) = plan([source])
        else:
            g.stage_and_launch([x], [source])
            z = y + 0
    for value in (3.0, 5.0):
        source.fill_(value)
        outer.replay()
        assert z.tolist() == [2 * value + 1] * 4
