"""What torch's own tests of CUDA graphs ask of random numbers."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorplay_torch as tp
from tests.equality import assert_all_equal

from .checklist import aside, attempted, captured, gpu
from .twins import random_state


def seed(value: int) -> None:
    torch.manual_seed(value)  # Of every device.


def generator_of(device: str) -> torch.Generator:
    if device == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device()]


def functional(name):
    calls = {
        "dropout": lambda x: nn.functional.dropout(x, 0.1),
        "rrelu": lambda x: nn.functional.rrelu(x, 0.1, 0.9, training=True),
    }
    return calls[name]


@pytest.mark.parametrize("name", ["dropout", "rrelu"])
def test_masks_follow_the_stream_of_the_generator_between_eager_calls(device, name):
    x, call = torch.linspace(-2, -1, 1000, device=device), functional(name)
    seed(5)
    expected = [call(x) for _ in range(6)]
    seed(5)
    made, y = captured(lambda: call(x), device)
    found = []
    for replayed in (True, True, False, False, True, False):
        if replayed:
            made.replay()
        found.append(y.clone() if replayed else call(x))
    assert_all_equal(found, expected)
    assert not torch.equal(expected[0], expected[1])
    for value in (6, 128, 9999):
        seed(value)
        again = call(x)
        seed(value)
        made.replay()
        assert torch.equal(y, again)


DRAWS = {
    "bernoulli": lambda x: x.bernoulli(),
    "multinomial": lambda x: torch.multinomial(x, 3),
    "normal": lambda x: torch.normal(x, x + 1),
    "poisson": lambda x: torch.poisson(x * 4),
    "rand": torch.rand_like,
    "randint": lambda x: torch.randint_like(x, 0, 100),
    "randn": torch.randn_like,
    "randperm": lambda x: torch.randperm(x.numel(), device=x.device),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.5),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "exponential_": lambda x: x.clone().exponential_(),
    "geometric_": lambda x: x.clone().geometric_(0.5),
    "log_normal_": lambda x: x.clone().log_normal_(),
    "normal_": lambda x: x.clone().normal_(),
    "random_": lambda x: x.clone().random_(),
    "uniform_": lambda x: x.clone().uniform_(),
}


WAITING_ON_CUDA = frozenset({"multinomial", "normal", "randperm"})
"""Torch's own kernels wait for the host, so a capture may be refused."""


@pytest.mark.parametrize("name", DRAWS)
def test_every_distribution_is_drawn_at_the_replay_as_eager_draws_it(device, name):
    x, draw = torch.full((200,), 0.5, device=device), DRAWS[name]
    if device == "cuda":
        aside(lambda: draw(x))
    seed(5)
    expected = [draw(x) for _ in range(3)]
    seed(5)
    before = generator_of(device).get_state()
    found = attempted(lambda: draw(x), device)
    if found is None:
        assert name in WAITING_ON_CUDA
        assert_all_equal([draw(x) for _ in expected], expected)
        return
    made, y = found
    assert torch.equal(generator_of(device).get_state(), before)
    for one in expected:
        made.replay()
        assert torch.equal(y, one)
    seed(9)
    again = draw(x)
    after = generator_of(device).get_state()
    seed(9)
    made.replay()
    assert torch.equal(y, again)
    assert torch.equal(generator_of(device).get_state(), after)


def test_a_recurrent_layers_dropout_follows_eager(device):
    torch.manual_seed(0)
    # oneDNN's path of the CPU draws its mask like any other operation.
    layer = nn.LSTM(8, 8, 2, dropout=0.5).to(device)
    x = torch.ones(5, 3, 8, device=device)
    with torch.no_grad():
        if device == "cuda":
            aside(lambda: layer(x))
        seed(5)
        expected = [layer(x)[0] for _ in range(3)]
        seed(5)
        found = attempted(lambda: layer(x)[0], device)
        if found is None:
            # The first call after a seed draws cuDNN's state by a number that torch reads on the
            # host, and the refused one may have counted as the first.
            seed(5)
        first = layer(x)[0]
        made, y = found or captured(lambda: layer(x)[0], device)
        made.replay()
        second, third = y.clone(), layer(x)[0]
    assert_all_equal((first, second, third), expected)
    assert not torch.equal(first, second)


@gpu
def test_a_checkpoint_draws_again_what_its_forward_drew():
    seed(0)
    layer = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.3)).cuda()
    x = torch.randn(8, 32, device="cuda", requires_grad=True)

    def step():
        y = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=True)
        return torch.autograd.grad(y.sum(), [x, *layer.parameters()])

    aside(step)
    seed(5)
    expected = step()
    seed(5)
    made, found = captured(step, "cuda")
    made.replay()
    assert_all_equal(found, expected)


def test_a_checkpoint_that_restores_the_generator_is_refused_on_the_cpu():
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3))
    x = torch.randn(8, 4, requires_grad=True)

    def step():
        y = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=True)
        return torch.autograd.grad(y.sum(), x)

    with pytest.raises(tp.OperationRefused, match="preserve_rng_state=False"):
        captured(step, "cpu")


def test_another_seed_inside_a_capture_is_refused(device):
    x, generator = torch.ones(3, device=device), generator_of(device)
    other = generator.initial_seed() + 1  # Which CUDA's generator does not tell while it captures.

    def work():
        seed(other)
        return torch.rand_like(x)

    before = random_state(x.device)
    own = torch.Generator(device)
    own.set_state(generator.get_state())
    with pytest.raises((tp.CaptureError, RuntimeError), match="seed"):
        captured(work, device)
    assert_all_equal(random_state(x.device), before)
    assert generator.initial_seed() == other - 1
    assert torch.equal(torch.rand_like(x), torch.rand(3, device=device, generator=own))


@gpu
def test_two_states_of_one_generator_are_both_followed():
    default = generator_of("cuda")
    first, second = default.graphsafe_get_state(), default.clone_state()
    second.manual_seed(77)
    made = tp.CUDAGraph()
    for one in (first, second):
        made.register_generator_state(one)

    def draw():
        default.graphsafe_set_state(first)
        a = torch.rand(100, device="cuda")
        default.graphsafe_set_state(second)
        b = torch.rand(100, device="cuda")
        default.graphsafe_set_state(first)
        return a, b

    first.manual_seed(5)
    second.manual_seed(77)
    expected = [draw() for _ in range(3)]
    offsets = first.get_offset(), second.get_offset()
    first.manual_seed(5)
    second.manual_seed(77)
    with tp.graph(made):
        a, b = draw()
    for one, two in expected:
        made.replay()
        assert torch.equal(a, one)
        assert torch.equal(b, two)
    assert (first.get_offset(), second.get_offset()) == offsets


@gpu
@pytest.mark.parametrize(("generators", "graphs"), [(1, 1), (3, 2), (10, 20)])
def test_generators_and_graphs_leave_no_memory_behind(generators, graphs):
    x = torch.zeros(8, device="cuda")
    captured(lambda: x + 1, "cuda")[0].close()

    def work():
        mine = [torch.Generator(device="cuda") for _ in range(generators)]
        for _ in range(graphs):
            made = tp.CUDAGraph()
            for one in mine:
                made.register_generator_state(one)
            with tp.graph(made):
                for one in mine:
                    torch.rand(8, device="cuda", generator=one)
            made.replay()
            made.close()

    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        work()
        gc.collect()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
