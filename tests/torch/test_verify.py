"""``assert_replay_equals_eager``: finds what a graph does otherwise, and changes nothing."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tensorplay_torch import assert_replay_equals_eager as check
from tensorplay_torch.checking.comparison import difference, drawn_like
from tests.equality import assert_all_equal


@pytest.fixture
def x(device):
    return torch.linspace(-1, 1, 12, device=device).view(3, 4)


def differs(function, *args, **kwargs) -> str:
    with pytest.raises(AssertionError) as caught:
        check(function, *args, **kwargs)
    return str(caught.value)


EQUAL = {
    "pure": lambda x: x.sin() * 2,
    "several": lambda x: {"a": x + 1, "b": [x.sum(), None, 3, "name"]},
    "dropout": lambda x: nn.functional.dropout(x),
    "noise": lambda x: x + torch.randn_like(x),
    "in place": lambda x: x.mul_(2),
    "an alias": lambda x: (x, x.t(), x[1]),
    "integers": lambda x: (x > 0).long().cumsum(0),
    "nan": lambda x: (x / 0 - x / 0, x / 0),
    "masked": lambda x: torch.where(x > 0, x, 0),
}


@pytest.mark.parametrize("function", EQUAL.values(), ids=EQUAL)
def test_what_is_equal_passes_and_arguments_stay(x, function):
    before = x.clone()
    check(function, x)
    assert torch.equal(x, before)


def test_a_number_that_the_capture_froze_is_found_in_every_later_round(x):
    calls = []

    def counts(x):
        calls.append(1)
        return x * len(calls)

    said = differs(counts, x)
    assert "replay of function" in said
    assert "round 1, output: " in said
    assert "of 12 elements differ, first at (0, 0)" in said
    assert "largest difference" in said


def test_randomness_of_python_is_found(x):
    assert "output" in differs(lambda x: x * random.random(), x)


def test_a_constant_result_that_is_none_is_found(x):
    calls = []
    said = differs(lambda x: (x, calls.append(1) or len(calls)), x)
    assert "output[1]: eager gives 1, replay 4" in said


def test_what_cannot_be_captured_says_so_itself(x):
    with pytest.raises(tp.OperationRefused):
        check(lambda x: x * x.sum().item(), x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, *, scale=1.0):
        self.calls += 1
        return self.layers(x) * scale


@pytest.fixture
def model(device, exact):
    torch.manual_seed(0)
    return Model().to(device)


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_module_is_differentiated_and_stays_as_it_was(model, x):
    before, random_state = state_of(model), torch.get_rng_state()
    x.requires_grad_()
    check(model, x, rounds=4)
    assert_all_equal(model.state_dict(), before)
    assert all(p.grad is None for p in model.parameters())
    assert x.grad is None
    assert torch.equal(torch.get_rng_state(), random_state)


def test_keyword_arguments_are_passed(model, x):
    check(model, x, scale=2.0)
    check(lambda *, x: x * 2, x=x)


def step_of(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_a_training_step_is_equal_and_undone(model, x):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True, capturable=True)
    step = step_of(model, optimizer)
    step(x)
    before = state_of(model)
    moments = [optimizer.state[p]["exp_avg"].clone() for p in model.parameters()]
    grads = [p.grad for p in model.parameters()]
    check(step, x)
    assert_all_equal(model.state_dict(), before)
    for p, moment, grad in zip(model.parameters(), moments, grads, strict=True):
        assert torch.equal(optimizer.state[p]["exp_avg"], moment)
        assert p.grad is grad


def test_a_step_that_was_not_warmed_up_is_refused_by_name(model, x):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    with pytest.raises(tp.OperationRefused, match="Warm up"):
        check(step_of(model, optimizer), x)
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())


def test_gradients_that_only_eager_accumulates_are_found(device, x):
    weight = torch.ones(4, device=device, requires_grad=True)
    module = nn.Module()
    module.weight = nn.Parameter(weight)

    def accumulates(x):
        (x * module.weight).sum().backward()

    said = differs(accumulates, x)
    assert "weight.grad" in said
    assert module.weight.grad is None


def test_writes_from_outside_are_compared_by_name(device, x):
    module, calls = nn.BatchNorm1d(4).to(device), []

    def writes(x):
        calls.append(1)
        module.running_mean.add_(len(calls))
        return x

    said = differs(writes, x)
    assert "running_mean afterwards" in said
    assert not module.running_mean.any()


def test_a_hidden_tensor_that_is_written_is_compared_and_put_back(device, x):
    hidden, calls = [torch.zeros(5, device=device)], []

    def writes(x):
        calls.append(1)
        hidden[0].add_(len(calls))

    assert "5 elements" in differs(writes, x)
    assert not hidden[0].any()


def test_inputs_of_ones_own_are_used(device):
    table = torch.arange(10.0, device=device)
    tokens = torch.tensor([1, 2], device=device)
    check(lambda t: table[t] * 2, tokens, fresh_inputs=[(torch.tensor([9, 0], device=device),)])


@pytest.mark.parametrize(
    ("fresh", "met"),
    [
        ((torch.ones(2, 4), 2), "args[0].shape: captured (3, 4), got (2, 4)"),
        ((torch.ones(3, 4, dtype=torch.float64), 2), "args[0].dtype"),
        ((torch.ones(3, 4), 3), "args[1]: captured 2, got 3"),
        ((3, 2), "args[0]: captured a tensor, got int"),
        ((torch.ones(3, 4),), "args"),
    ],
)
def test_inputs_that_are_unlike_are_refused_by_path(fresh, met):
    with pytest.raises(tp.SignatureMismatch) as caught:
        check(lambda x, by: x * by, torch.ones(3, 4), 2, fresh_inputs=[fresh])
    assert any(met in line for line in caught.value.differences)


@pytest.mark.parametrize("rounds", [1, 0, "2"])
def test_too_few_rounds_are_refused(x, rounds):
    with pytest.raises(tp.ArgumentError, match="at least 2"):
        check(lambda x: x, x, rounds=rounds)


def test_an_expanded_argument_is_refused(device):
    with pytest.raises(tp.ArgumentError, match="expanded"):
        check(lambda x: x * 2, torch.ones(3, 1, device=device).expand(3, 4))


def test_one_tensor_given_twice_stays_one(x):
    check(lambda a, b: (a.add_(1), b * 2), x, x)
    check(lambda a, b: (a.add_(1), b * 2), x, x[1:])


def test_a_graphed_function_is_checked_as_the_function(x):
    check(tp.graphed(lambda x: x * 2), x)
    module = tp.make_graphed_callables(nn.Linear(4, 2).to(x.device), (x,))
    with pytest.raises(tp.GraphStateError):
        check(module, x)
    tp.release(module)


def test_it_is_refused_inside_a_capture(device, x):
    with pytest.raises(tp.GraphStateError), tp.graph(tp.CUDAGraph(device=device)):
        check(lambda x: x * 2, x)


def test_an_exception_is_the_users_own_and_everything_is_put_back(model, x):
    before = state_of(model)

    def fails(x):
        model(x)
        raise KeyError("the user's own")

    with pytest.raises(KeyError):
        check(fails, x)
    assert_all_equal(model.state_dict(), before)


def test_many_differences_are_counted(x):
    calls = []

    def counts(x):
        calls.append(1)
        return [x * len(calls) for _ in range(20)]

    assert "and " in differs(counts, x).splitlines()[-1]


def test_pending_backwards_of_the_user_survive(device, model, x):
    loss = model(x).sum()
    if device == "cuda" and not hasattr(torch._C, "_set_override_stale_capture_stream"):
        # This torch takes gradients to parameters on the stream of the pending forward.
        with pytest.raises(tp.CaptureInvalidated, match="del loss"):
            check(model, x)
    else:
        check(model, x)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("eager", "replay", "said"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0]), ""),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), ""),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "1 of 1 elements differ, first at (0,)"),
        (torch.tensor(True), torch.tensor(False), "first at (): eager True, replay False"),
        (torch.tensor([1, 2]), torch.tensor([1, 4]), "largest difference 2"),
        (torch.ones(2), torch.ones(3), "shape (3,)"),
        (torch.ones(2), torch.ones(2).double(), "torch.float64"),
        (torch.ones(2), None, "replay none"),
        (None, None, ""),
        (torch.ones(0), torch.ones(0), ""),
        (torch.tensor([1j]), torch.tensor([2j]), "largest difference 1"),
    ],
)
def test_differences_are_told(eager, replay, said):
    found = difference(eager, replay)
    assert said in found
    assert bool(found) is bool(said)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(50),
        torch.rand(50, dtype=torch.float64) + 3,
        torch.full((50,), 2.0),
        torch.zeros(50),
        torch.randint(0, 9, (50,)),
        torch.rand(50) > 0.5,
        torch.randn(50, dtype=torch.complex64),
        torch.rand(50, dtype=torch.bfloat16),
        torch.tensor([float("nan")] * 50),
    ],
    ids=["floats", "doubles", "twos", "zeros", "integers", "flags", "complex", "halves", "nan"],
)
def test_inputs_are_drawn_in_the_range_of_those_given(tensor):
    first, second = (drawn_like(tensor, torch.Generator().manual_seed(n)) for n in (1, 2))
    assert (first.shape, first.dtype, first.device) == (tensor.shape, tensor.dtype, tensor.device)
    assert not torch.equal(first, second)
    if tensor.dtype is torch.int64:
        assert set(first.tolist()) <= set(tensor.tolist())
    if tensor.dtype.is_floating_point and not tensor.isnan().any() and tensor.min() < tensor.max():
        assert tensor.min() <= first.min()
        assert first.max() <= tensor.max()


def test_nothing_is_drawn_for_what_has_no_elements():
    assert drawn_like(torch.ones(0, 3), torch.Generator()).shape == (0, 3)
