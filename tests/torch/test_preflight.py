"""``preflight``: what a capture would mind, found by one run that changes nothing."""

from __future__ import annotations

import random
import sys
import uuid

import numpy as np
import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tensorplay_torch.checking.findings import Finding

HERE = f"{__file__}:"


def line(offset: int = 1) -> str:
    """The place ``offset`` lines below the call."""
    return f"{HERE}{sys._getframe(1).f_lineno + offset}"


def problems(function, *args, **kwargs):
    return tp.preflight(function, *args, **kwargs).problems


def only(function, *args, **kwargs) -> Finding:
    report = tp.preflight(function, *args, **kwargs)
    assert len(report.problems) == 1, str(report)
    assert not report.ok
    return report.problems[0]


@pytest.fixture
def x(device):
    return torch.linspace(-1, 1, 6, device=device)


def test_plain_code_has_no_problem(x):
    report = tp.preflight(lambda x: (x * 2).relu().sum(), x)
    assert report.ok
    assert report.findings == ()
    assert str(report).endswith(f"on {x.device}: nothing found")


READS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "index": lambda x: [1, 2, 3][x.argmax().new_zeros(())],
    "tolist": lambda x: x.tolist(),
    "contains": lambda x: 2.0 in x,
    "repr": lambda x: repr(x),
    "format": lambda x: f"{x[0]:.2f}",
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "nested": lambda x: torch.tensor([x[0], x[1]]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_host_read_is_found_with_its_place_and_a_remedy(x, read):
    finding = only(read, x)
    assert finding.kind == "host read" or x.is_cuda
    assert finding.where.startswith(HERE)
    assert finding.remedy
    assert finding.operation


def test_each_line_is_a_finding_of_its_own_and_loops_are_one(x):
    def branches(x):
        if x.sum() > 0:
            x = x + 1
        for _ in range(3):
            x = x * float(x[0])
        return x

    first = line(-6)
    found = problems(branches, x)
    assert len(found) == 2
    assert found[0].where == first
    assert {one.kind for one in found} == {"host read"}


def test_the_run_goes_on_after_what_a_capture_refuses(x):
    def several(x):
        count = int((x > 0).sum())
        mask = x[x > 0]
        noise = random.random()
        return mask.sum() * count * noise

    kinds = {one.kind for one in problems(several, x)}
    assert kinds == {"host read", "data-dependent shape", "host randomness"}


SHAPES = {
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "where": lambda x: torch.where(x > 0),
    "mask written": lambda x: x.clone().index_put_((x > 0,), x[:3]),
    "repeat_interleave": lambda x: x.repeat_interleave((x > 0).long()),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_shape_that_depends_on_values_is_found(x, shape):
    found = problems(shape, x)
    assert {one.kind for one in found} <= {"data-dependent shape", "host read"}
    assert "data-dependent shape" in {one.kind for one in found}
    assert all(one.where.startswith(HERE) for one in found)


FINE = {
    "nonzero_static": lambda x: x.nonzero_static(size=3),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "number by mask": lambda x: x.clone().__setitem__(x > 0, 0.0),
    "where": lambda x: torch.where(x > 0, x, 0),
    "dropout": lambda x: nn.functional.dropout(x),
    "rand": lambda x: torch.rand_like(x),
    "view": lambda x: x.view(2, 3).t().reshape(-1),
    "repeat_interleave": lambda x: x.repeat_interleave((x > 0).long(), output_size=3),
}


@pytest.mark.parametrize("fine", FINE.values(), ids=FINE)
def test_what_graphs_can_have_is_no_problem(x, fine):
    report = tp.preflight(fine, x)
    assert report.ok, str(report)


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
    assert finding.where.startswith(HERE) or called == "numpy.random.Generator"
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
    assert np.random.rand is before or np.random.rand == before
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
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


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
        assert all(torch.equal(optimizer.state[p][name], before[name]) for name in before)


def test_an_optimizer_that_counts_on_the_host_is_found_with_the_spelling_that_helps(training, x):
    _, _, step = training(torch.optim.Adam, foreach=False)
    step(x)
    found = problems(step, x)
    assert found
    assert any("capturable=True" in one.remedy for one in found)


def test_backward_passes_are_looked_at(x):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * grad.sum().item()

    weight = x.clone().requires_grad_()
    finding = only(lambda: Reads.apply(weight).sum().backward())
    assert finding.kind == "host read"
    assert finding.where.startswith(HERE)
    assert weight.grad is None


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


def test_keyword_arguments_are_passed_on(x):
    finding = only(lambda x, *, scale: x * scale.item(), x, scale=x[0])
    assert finding.kind == "host read"


def test_a_graphed_function_is_run_without_its_graphs(x):
    graphed = tp.graphed(lambda x: x * 2)
    assert tp.preflight(graphed, x).ok
    assert graphed.graphed is None
    module = tp.make_graphed_callables(nn.Linear(6, 2).to(x.device), (x,))
    with pytest.raises(tp.GraphStateError):
        tp.preflight(module, x)
    tp.release(module)


def test_it_is_refused_inside_a_capture(device, x):
    with (
        pytest.raises(tp.GraphStateError, match="preflight"),
        tp.graph(tp.CUDAGraph(device=device)),
    ):
        tp.preflight(lambda x: x * 2, x)


def test_a_report_reads_well(x):
    def step(x):
        scale = x.abs().max().item()
        hidden.add_(1)
        return x / scale

    hidden = torch.zeros_like(x)
    report = tp.preflight(step, x)
    said = str(report)
    first, *rest = said.splitlines()
    assert "step on" in first
    assert first.endswith("1 problem, 1 note")
    assert rest[0].startswith("  problem: host read: ")
    assert any(one.startswith("  note: write: ") for one in rest)
    assert report.findings == report.problems + report.notes


@pytest.mark.gpu
def test_what_only_a_gpu_minds_is_found():
    x, host = torch.ones(6, device="cuda"), torch.zeros(6)
    kinds = {
        one.kind
        for one in problems(
            lambda x: (
                x.cpu(),
                host.add_(1),
                torch.rand(3),
                torch.cuda.synchronize(),
                x.to("cuda"),
            ),
            x,
        )
    }
    assert kinds >= {"blocking copy", "write on the host", "host randomness", "wait"}
    assert not host.any()


@pytest.mark.gpu
def test_what_passes_on_a_gpu_can_be_captured_there():
    x = torch.ones(6, device="cuda")

    def work(x):
        return (x.view(2, 3) @ x.view(3, 2)).relu().sum()

    assert tp.preflight(work, x).ok
    made = tp.CUDAGraph()
    with tp.graph(made):
        work(x)
