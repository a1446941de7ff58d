"""``preflight`` and what a run changes: it is found, named, and put back."""

from __future__ import annotations

import random
import sys
import uuid

import numpy as np
import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tests.equality import assert_all_equal

from .preflights import only, problems

HERE = f"{__file__}:"


def numpy_generator(x, generator=np.random.default_rng(0)):  # noqa: B008
    return x * generator.normal()


RANDOM = {
    "random": (lambda x: x * random.random(), "random.random"),
    "randint": (lambda x: x * random.randint(1, 9), "random.getrandbits"),
    "shuffle": (lambda x: random.shuffle([1, 2, 3]), "random.getrandbits"),
    "numpy": (lambda x: x * np.random.rand(), "numpy.random.rand"),
    "numpy choice": (lambda x: x * np.random.choice(3), "numpy.random.choice"),
    "numpy generator": (numpy_generator, "numpy.random.Generator"),
    "uuid": (lambda x: uuid.uuid4(), "os.urandom"),
}


@pytest.mark.parametrize(("draw", "called"), RANDOM.values(), ids=RANDOM)
def test_randomness_of_python_is_found_and_its_state_is_put_back(x, draw, called):
    before = random.getstate(), repr(np.random.get_state())
    finding = only(draw, x)
    assert finding.kind == "host randomness"
    assert finding.operation == called
    if called == "numpy.random.Generator":
        assert finding.where == ""  # Its state tells that it drew, not where.
    else:
        assert finding.where.startswith(HERE)
    assert (random.getstate(), repr(np.random.get_state())) == before


def test_a_generator_of_numpys_and_one_of_pythons_are_put_back(x):
    mine, theirs = random.Random(3), np.random.default_rng(3)
    before = mine.getstate(), repr(theirs.bit_generator.state)
    problems(lambda x: x * mine.random() * theirs.normal(), x)
    assert (mine.getstate(), repr(theirs.bit_generator.state)) == before


def test_numpys_functions_are_its_own_again(x):
    before = np.random.rand
    with pytest.raises(KeyError):
        tp.preflight(lambda x: {}["missing"], x)
    tp.preflight(lambda x: x * np.random.rand(), x)
    assert np.random.rand == before
    assert sys.getprofile() is None


SEEDS = {
    "manual_seed": lambda x: torch.manual_seed(0),
    "set_state": lambda x: torch.set_rng_state(torch.get_rng_state()),
    "fork_rng": lambda x: torch.random.fork_rng(devices=[]).__enter__(),
}


@pytest.mark.parametrize("name", ["manual_seed", "set_state"])
def test_a_seed_inside_is_found_and_undone(x, name):
    before = torch.get_rng_state()
    finding = only(lambda x: (SEEDS[name](x), x * 2), x)
    assert finding.kind == "randomness by hand"
    assert finding.where.startswith(HERE)
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_of_torch_itself_are_no_problem_and_undone(x):
    before = torch.get_rng_state()
    state = torch.cuda.get_rng_state() if x.is_cuda else None
    assert tp.preflight(lambda x: x + torch.randn_like(x), x).ok
    assert torch.equal(torch.get_rng_state(), before)
    assert state is None or torch.equal(torch.cuda.get_rng_state(), state)


def test_a_write_from_outside_is_a_note_by_its_name(device, x):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return x * self.count

    module = Counting().to(device)
    report = tp.preflight(module, x)
    assert report.ok
    (note,) = report.notes
    assert (note.kind, note.operation) == ("write", "aten.add_.Tensor")
    assert "count" in note.met
    assert note.where.startswith(HERE)
    assert module.count.item() == 0


def test_a_write_to_an_argument_names_it_and_is_undone(x):
    def double_(batch):
        return batch["x"].mul_(2)

    before = x.clone()
    (note,) = tp.preflight(double_, {"x": x}).notes
    assert "args[0]['x']" in note.met
    assert torch.equal(x, before)


def test_a_write_to_a_tensor_that_nobody_named_is_found_too(device, x):
    hidden = [torch.zeros(6, device=device)]
    (note,) = tp.preflight(lambda x: hidden[0].add_(x), x).notes
    assert "shape (6,)" in note.met
    assert not hidden[0].any()


def test_what_the_run_itself_made_may_be_written(x):
    assert tp.preflight(lambda x: (x * 2).add_(1).clamp_(0), x).findings == ()


def test_attributes_that_it_sets_are_a_note(device, x):
    class Remembers(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * 2

    module = Remembers().to(device)
    report = tp.preflight(module, x)
    assert report.ok
    assert "calls" in report.notes[0].met
    assert module.calls == 0


@pytest.fixture
def training(device):
    torch.manual_seed(0)
    model = nn.Linear(6, 2).to(device)
    fused = {"fused": True, "capturable": True}

    def make(kind=torch.optim.AdamW, **options):
        optimizer = kind(model.parameters(), lr=0.1, **(options or fused))

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        return model, optimizer, step

    return make


def test_optimizer_state_that_is_not_there_yet_is_found_and_undone(training, x):
    model, optimizer, step = training()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    finding = only(step, x)
    assert finding.kind == "optimizer state"
    assert finding.operation == "AdamW.step"
    assert "Warm up first" in finding.remedy
    assert finding.where.startswith(HERE)
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    assert_all_equal(model.state_dict(), before)


def test_once_warmed_up_a_step_is_fine_and_nothing_moves(training, x):
    model, optimizer, step = training()
    step(x)
    grads = [p.grad for p in model.parameters()]
    state = [
        {name: value.clone() for name, value in optimizer.state[p].items()}
        for p in model.parameters()
    ]
    values = [p.detach().clone() for p in model.parameters()]
    report = tp.preflight(step, x)
    assert report.ok, str(report)
    said = str(report)
    assert "weight" in said
    assert "bias" in said
    for p, grad, before, value in zip(model.parameters(), grads, state, values, strict=True):
        assert p.grad is grad
        assert torch.equal(p, value)
        assert_all_equal(optimizer.state[p], before)


def test_an_optimizer_that_counts_on_the_host_is_found_with_the_spelling_that_helps(training, x):
    _, _, step = training(torch.optim.Adam, foreach=False)
    step(x)
    found = problems(step, x)
    assert found
    assert any("capturable=True" in one.remedy for one in found)


def test_gradients_that_accumulate_are_put_back(x):
    weight = x.clone().requires_grad_()
    weight.grad = grad = torch.ones_like(x)
    assert tp.preflight(lambda: (weight * 2).sum().backward()).ok
    assert weight.grad is grad
    assert torch.equal(grad, torch.ones_like(x))


MOVES = {
    "data": lambda x, hidden: setattr(hidden, "data", x),
    "resize": lambda x, hidden: hidden.resize_(12),
    "set": lambda x, hidden: hidden.set_(x.untyped_storage()),
}


@pytest.mark.parametrize("name", ["data"])
def test_memory_that_moves_is_found(device, x, name):
    hidden = torch.zeros(6, device=device)
    finding = only(lambda x: MOVES[name](x, hidden), x)
    assert finding.kind == "memory that moves"


def test_an_exception_is_the_users_own_and_everything_is_put_back(device, x):
    module = nn.BatchNorm1d(3).to(device)

    def fails(x):
        module(x.view(2, 3))
        random.random()
        raise KeyError("the user's own")

    before = module.running_mean.clone(), random.getstate()
    with pytest.raises(KeyError, match="own"):
        tp.preflight(fails, x)
    assert torch.equal(module.running_mean, before[0])
    assert module.num_batches_tracked.item() == 0
    assert random.getstate() == before[1]
    assert tp.preflight(lambda x: x * 2, x).ok
