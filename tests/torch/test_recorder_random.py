"""Random numbers in a capture on the CPU: drawn by replays, not set by hand, shared by threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tensorplay_torch as tp
from tensorplay_core import OperationRefused
from tensorplay_core.protocols import CaptureOptions
from tests.equality import assert_all_equal

from .refusals import refusal, x

SEEDED = torch.Generator().manual_seed(7).get_state()


class Random:
    """Ways to change a generator's state by hand."""

    def reseeds(t):
        torch.manual_seed(0)
        return torch.rand_like(t)

    def reseeds_last(t):
        t = torch.rand_like(t)
        torch.manual_seed(0)
        return t

    def rewinds(t):
        state = torch.get_rng_state()
        first = torch.rand_like(t)
        torch.set_rng_state(state)
        return first, torch.rand_like(t)

    def forks(t):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return torch.rand_like(t)

    def reseeds_to_the_same(t):
        torch.manual_seed(torch.initial_seed())
        return torch.rand_like(t)

    def rewinds_without_a_draw_before(t):
        torch.set_rng_state(SEEDED)
        return torch.rand_like(t)

    def reseeds_last_to_the_same(t):
        t = t * 2
        torch.default_generator.manual_seed(torch.initial_seed())
        return t

    def checkpoints(t):
        t = t.clone().requires_grad_()
        checkpoint(lambda t: F.dropout(t, 0.5), t, use_reentrant=False).sum().backward()
        return t.grad


@pytest.mark.parametrize("name", [name for name in vars(Random) if not name.startswith("_")])
def test_random_state_set_by_hand(record, name):
    t = x()
    # The generator is where the functions that set it put it.
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with pytest.raises(OperationRefused, match="manual_seed"):
        record(getattr(Random, name), t)
    if name != "checkpoints":
        torch.set_rng_state(before)
    before = torch.get_rng_state()
    record(lambda: torch.rand(3)).replay()
    assert not torch.equal(torch.get_rng_state(), before)


def test_generators_have_to_be_known(record):
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()

    def body():
        return torch.rand(3, generator=generator), torch.rand(3)

    assert "register_generator_state" in refusal(record, body).remedy
    captured = record(body, options=CaptureOptions(generators=(generator,)))
    assert torch.equal(generator.get_state(), before)
    for _ in range(3):
        torch.manual_seed(1)
        captured.replay()
        after = generator.get_state()
        generator.set_state(before)
        torch.manual_seed(1)
        assert_all_equal(captured.result, body())
        assert torch.equal(generator.get_state(), after)
        before = after

    def in_order():
        return torch.poisson(torch.ones(3), generator=generator)

    assert "register_generator_state" in refusal(record, in_order).remedy

    def reseeds():
        generator.manual_seed(1)
        return torch.rand(3, generator=generator)

    with pytest.raises(OperationRefused, match="manual_seed"):
        record(reseeds, options=CaptureOptions(generators=(generator,)))


def test_draws_in_bodies(record):
    def body():
        nonlocal captured
        with captured.body():
            return torch.rand(3)

    captured = None

    class Bodied(record):
        def __init__(self, function):
            nonlocal captured
            self.works, self.names, self.attributes = [], [], []
            from tensorplay_torch.cpu.recorder import Recorder

            captured = Recorder(self)
            with captured:
                function()

    assert "body" in refusal(Bodied, body).met


def test_checkpoints_without_draws_are_fine(record):
    w = x().requires_grad_()

    def body():
        y = checkpoint(lambda t: torch.tanh(t @ w), w, use_reentrant=False)
        return torch.autograd.grad(y.sum(), w)[0]

    captured = record(body)
    captured.replay()
    assert torch.equal(captured.result, body())


def test_a_state_that_is_read_and_put_back_is_none_set(record):
    def body():
        first = torch.rand(3)
        with torch.random.fork_rng():
            second = first * 2
        torch.set_rng_state(torch.get_rng_state())
        return first, second, torch.rand(3)

    torch.manual_seed(5)
    before = torch.get_rng_state()
    captured = record(body)
    assert torch.equal(torch.get_rng_state(), before)
    captured.replay()
    torch.manual_seed(5)
    assert_all_equal(captured.result, body())


DRAWS = {
    "one": lambda: torch.rand(()),
    "a block less one": lambda: torch.rand(623),
    "many": lambda: torch.randn(5000),
    "halves of pairs": lambda: torch.randn(1),
    "in double precision": lambda: torch.rand(7, dtype=torch.float64),
    "integers": lambda: torch.randint(0, 10, (3,)),
    "a permutation": lambda: torch.randperm(700),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_other_threads_are_theirs(record, name):
    drawn = []

    def body():
        first = torch.rand(3)
        for _ in range(3):
            thread = threading.Thread(target=lambda: drawn.append(DRAWS[name]()))
            thread.start()
            thread.join()
        return first, torch.rand(3)

    captured = record(body)
    drawn.append(DRAWS[name]())
    # Nobody draws twice what was drawn once.
    if name not in {"integers"}:
        assert not any(
            torch.equal(one, other) for place, one in enumerate(drawn) for other in drawn[:place]
        )
    torch.manual_seed(5)
    captured.replay()
    torch.manual_seed(5)
    assert_all_equal(captured.result, (torch.rand(3), torch.rand(3)))


def test_another_thread_draws_all_the_while(record):
    drawn, done = [], threading.Event()

    def draw():
        while not done.is_set():
            drawn.append(tuple(torch.rand(4).tolist()))

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(50):
            record(lambda: [torch.rand(2) for _ in range(4)])
    finally:
        done.set()
        thread.join()
    assert len(drawn) == len(set(drawn)) > 1


def test_several_threads_capture_at_once(record):
    before, together = torch.get_rng_state(), threading.Barrier(4)

    def work(_):
        together.wait()
        for _ in range(30):
            captured = record(lambda: [torch.rand(2) for _ in range(4)])
            assert captured.recorder.node_count == 4

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_thread_seeds_before_its_capture_beside_another(record):
    """The one that is captured meanwhile cannot tell who did it; the later one is in order."""
    drawn = []

    def other():
        torch.manual_seed(11)
        captured = record(lambda: torch.rand(3))
        captured.replay()
        drawn.append(captured.result)

    def body():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return torch.rand(3)

    assert "another thread" in refusal(record, body).met
    assert len(drawn) == 1


def test_a_seed_that_another_thread_sets_is_refused(record):
    def body():
        thread = threading.Thread(target=torch.manual_seed, args=(3,))
        thread.start()
        thread.join()
        return torch.rand(3)

    assert "another thread" in refusal(record, body).met


def test_a_graph_that_draws_is_not_replayed_in_a_body():
    flag = torch.tensor(True)
    drawing, plain = tp.CUDAGraph(device="cpu"), tp.CUDAGraph(device="cpu")
    with tp.graph(drawing):
        drawn = torch.rand(3)
    with tp.graph(plain):
        doubled = drawn * 2
    outer = tp.CUDAGraph(device="cpu")
    with tp.graph(outer):  # Between bodies it is a child like any other.
        drawing.replay()
        with outer.if_then(flag):
            plain.replay()
    for graph in (drawing, outer):  # A graph that has such a child is one itself.
        made = tp.CUDAGraph(device="cpu")
        with pytest.raises(OperationRefused, match="body"), tp.graph(made), made.if_then(flag):
            graph.replay()
    torch.manual_seed(3)
    outer.replay()
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
    assert torch.equal(doubled, drawn * 2)


def test_an_update_to_a_graph_that_draws_is_none_in_place():
    made, other = tp.CUDAGraph(device="cpu"), tp.CUDAGraph(device="cpu")
    x = torch.zeros(3)
    with tp.graph(made):
        x.add_(1)
    with tp.graph(other):
        x.add_(torch.rand(3))
    assert not made.update(other).in_place
    again = tp.CUDAGraph(device="cpu")
    with (
        pytest.raises(OperationRefused, match="body"),
        tp.graph(again),
        again.if_then(torch.tensor(True)),
    ):
        made.replay()
