"""``check_input_liveness``: inputs held weakly; a replay after one died says which, and where."""

from __future__ import annotations

import gc
import inspect
import threading

import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tensorplay_torch.tracking.liveness import LISTED, Input, listed

from .stale_graphs import stale, watched


def line() -> str:
    """This line, as errors name it."""
    caller = inspect.currentframe().f_back
    return f"{__file__}:{caller.f_lineno}"


def test_living_inputs_are_replayed(device):
    x, y = torch.ones(3, device=device), torch.ones(3, device=device)
    made, out = watched(lambda: x + y, device)
    for value in (1.0, 5.0):
        x.fill_(value)
        made.replay()
        assert out.tolist() == [value + 1] * 3


def test_a_dead_input_is_named_with_the_places_of_its_use_and_of_its_end(device):
    x, y = torch.ones(2, 3, device=device), torch.ones(2, 3, device=device)
    made = tp.CUDAGraph(device=device)
    with tp.graph(made, check_input_liveness=True):
        used = line()
        out = x * y
    assert out.shape == (2, 3)
    made.replay()
    gone = line()
    del x
    said = stale(made)
    assert "1 of its inputs died" in said
    assert "shape (2, 3), torch.float32" in said
    before, after = used.rpartition(":")[2], gone.rpartition(":")[2]
    assert f"first used by aten.mul.Tensor at {__file__}:{int(before) + 1}" in said
    assert f"went at {__file__}:{int(after) + 1}" in said


def test_it_may_die_between_two_replays_and_the_graph_stays_stale(device):
    x = torch.ones(3, device=device)
    made, _ = watched(lambda: x * 2, device)
    made.replay()
    made.replay()
    x = None
    stale(made)
    stale(made)


def make(device):
    x = torch.ones(3, device=device)
    return watched(lambda: x * 2, device)


def test_an_input_that_left_its_scope_is_dead(device):
    made, _ = make(device)
    assert f"went at {__file__}:" in stale(made)


def test_one_of_several_is_named_alone(device):
    x, y = torch.ones(3, device=device), torch.ones(7, device=device)
    made, _ = watched(lambda: (x * 2, y * 2), device)
    y = None
    said = stale(made)
    assert "(7,)" in said
    assert "(3,)" not in said


def test_many_are_counted_and_the_first_are_named(device):
    many = [torch.ones(place + 1, device=device) for place in range(LISTED + 3)]
    made, _ = watched(lambda: [x * 2 for x in many], device)
    many.clear()
    said = stale(made)
    assert f"{LISTED + 3} of its inputs died" in said
    assert "and 3 more" in said
    assert listed(["a"]) == "a"


def test_intermediates_and_results_may_die(device):
    x = torch.ones(3, device=device)
    made, out = watched(lambda: (x * 2 + 1).relu(), device)
    del out
    gc.collect()
    made.replay()


def test_a_view_keeps_its_base_alive_and_dies_with_it(device):
    base = torch.arange(6.0, device=device)
    view = base[3:]
    made, out = watched(lambda: view * 2, device)
    del base
    made.replay()
    assert out.tolist() == [6.0, 8.0, 10.0]
    view = None
    stale(made)


def test_tensors_in_lists_are_seen(device):
    x = [torch.ones(3, device=device) for _ in range(2)]
    made, _ = watched(lambda: torch._foreach_add(x, 1.0), device)
    made.replay()
    del x[1]
    assert "1 of its inputs" in stale(made)


def test_a_models_weights_are_inputs(device):
    model, x = nn.Linear(3, 3).to(device), torch.ones(2, 3, device=device)
    model(x)
    made, _ = watched(lambda: model(x), device)
    made.replay()
    model.weight = nn.Parameter(torch.ones(3, 3, device=device))
    assert "1 of its inputs" in stale(made)
    model = None
    assert "2 of its inputs" in stale(made)


def test_inputs_of_a_backward_pass_are_seen_on_whatever_thread_it_runs(device):
    weight = torch.ones(3, device=device, requires_grad=True)
    seed = torch.full((3,), 2.0, device=device)
    made = tp.CUDAGraph(device=device)
    with tp.graph(made, check_input_liveness=True):
        (weight * 1.5).backward(seed)
    made.replay()
    assert weight.grad.tolist() == [3.0] * 3
    del seed
    assert "1 of its inputs" in stale(made)


class Doubled(torch.autograd.Function):
    factor = None

    @staticmethod
    def forward(ctx, x):
        return x * Doubled.factor

    @staticmethod
    def backward(ctx, grad):
        return grad * Doubled.factor


def test_inputs_of_a_custom_function_are_seen(device):
    x = torch.ones(3, device=device)
    Doubled.factor = torch.full((3,), 2.0, device=device)
    made, _ = watched(lambda: Doubled.apply(x), device)
    made.replay()
    Doubled.factor = None
    stale(made)


@torch.library.custom_op("tensorplay_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return x * by


@scaled.register_fake
def _(x, by):
    return torch.empty_like(x)


def test_inputs_of_an_operation_of_ones_own_are_seen(device):
    x, by = torch.ones(3, device=device), torch.ones(3, device=device)
    made, _ = watched(lambda: scaled(x, by), device)
    made.replay()
    by = None
    assert "tensorplay_tests.scaled" in stale(made)


def test_a_tensor_without_elements_is_no_reason_to_stop(device):
    x, empty = torch.ones(3, device=device), torch.empty(0, device=device)
    made, _ = watched(lambda: torch.cat([x, empty]), device)
    made.replay()
    empty = None
    said = stale(made)
    assert "(0,)" in said


def test_work_outside_the_capture_is_not_watched(device):
    x, other = torch.ones(3, device=device), torch.ones(3, device=device)
    other.add_(1)
    made, _ = watched(lambda: x * 2, device)
    del other
    made.replay()


def test_without_asking_inputs_are_kept(device):
    made = tp.CUDAGraph(device=device)
    x = torch.ones(3, device=device)
    with tp.graph(made):
        out = x * 2
    del x
    made.replay()
    assert out.tolist() == [2.0] * 3


@pytest.mark.parametrize("captures_elsewhere", [True, False])
def test_capture_and_replay_may_be_on_two_threads(device, captures_elsewhere):
    x, found = torch.ones(3, device=device), []

    def run(function):
        thread = threading.Thread(target=lambda: found.append(function()))
        thread.start()
        thread.join()
        return found.pop()

    def capture():
        return watched(lambda: x * 2, device, capture_error_mode="thread_local")

    made, _ = run(capture) if captures_elsewhere else capture()
    if captures_elsewhere:
        made.replay()
    else:
        assert run(made.replay) is None
    x = None
    assert "died" in (stale(made) if captures_elsewhere else run(lambda: stale(made)))


def test_the_second_user_of_a_storage_keeps_it(device):
    x = torch.ones(4, device=device)
    other = x.view(2, 2)
    made, _ = watched(lambda: x * 2, device)
    x = None
    made.replay()
    del other
    stale(made)


def test_an_input_says_nothing_of_its_end_while_it_lives():
    x = torch.ones(2)
    one = Input(x, "here")
    alias = x.detach()
    assert not one.dead
    del x
    assert not one.dead
    assert "went" not in str(one)
    del alias
    assert one.dead
    assert f"went at {__file__}:" in str(one)


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [True, False])
def test_pinned_memory_is_watched_where_the_graph_copies_from_it(pinned):
    host = torch.ones(3, pin_memory=True)
    out, made = torch.zeros(3, device="cuda"), tp.CUDAGraph()
    with tp.graph(made, check_input_liveness=True):
        if pinned:
            out.copy_(host, non_blocking=True)
        else:
            out.add_(1)
    made.replay()
    del host
    if pinned:
        assert "on cpu" in stale(made)
    else:
        made.replay()


def test_a_tensor_of_the_shared_pool_is_the_pools_to_keep(device):
    pool = tp.graph_pool_handle(device)
    x = torch.ones(3, device=device)
    first, second = tp.CUDAGraph(device=device), tp.CUDAGraph(device=device)
    with tp.graph(first, pool=pool):
        shared = x * 2
    with tp.graph(second, pool=pool, check_input_liveness=True):
        out = shared + 1
    del shared
    first.replay()
    second.replay()
    assert out.tolist() == [3.0] * 3
