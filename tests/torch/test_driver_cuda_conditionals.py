"""The torch driver on a GPU: bodies of conditional nodes, with memory of their own."""

from __future__ import annotations

import copy

import pytest
import torch

import tensorplay_torch as tp
from tests.equality import assert_all_equal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("clean")]


def test_a_while_body_allocates_beside_eager_allocations():
    torch.manual_seed(0)
    x0, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda") * 0.1
    x, n = x0.clone(), torch.zeros((), dtype=torch.int64, device="cuda")
    limit, more = torch.tensor(5, device="cuda"), torch.tensor(True, device="cuda")
    for _ in range(2):
        torch.relu(x0 @ w)
    g = tp.CUDAGraph()
    with tp.graph(g, capture_error_mode="thread_local"):
        n.zero_()
        torch.lt(n, limit, out=more)
        with g.while_loop(more):
            y = torch.relu(x @ w) + 0.1
            x.copy_(y * 2)
            n.add_(1)
            torch.lt(n, limit, out=more)
        out = x.sum()
    for steps in (3, 5, 0, 4):
        x.copy_(x0)
        limit.fill_(steps)
        junk = [torch.randn(64, 64, device="cuda") for _ in range(50)]
        g.replay()
        expected = x0
        for _ in range(steps):
            expected = (torch.relu(expected @ w) + 0.1) * 2
        assert torch.equal(x, expected)
        assert torch.equal(out, expected.sum())
        assert n.item() == steps
        del junk


def test_bodies_nest():
    i, even = (torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2))
    more, odd = (torch.tensor(True, device="cuda") for _ in range(2))
    g = tp.CUDAGraph()
    with tp.graph(g, capture_error_mode="thread_local"):
        i.zero_()
        even.zero_()
        torch.lt(i, 10, out=more)
        with g.while_loop(more):
            torch.eq(i % 2, 0, out=odd)
            with g.if_then(odd):
                even.add_(torch.ones_like(even))
            i.add_(1)
            torch.lt(i, 10, out=more)
    for _ in range(3):
        g.replay()
        assert (i.item(), even.item()) == (10, 5)


def test_work_forked_inside_a_body_has_memory_of_the_graphs():
    x, flag = torch.ones(1 << 16, device="cuda"), torch.tensor(True, device="cuda")
    side, result, g = torch.cuda.Stream(), torch.zeros(1 << 16, device="cuda"), tp.CUDAGraph()
    with tp.graph(g, capture_error_mode="thread_local"), g.if_then(flag):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            y = x * 3
            z = y + 1
        current.wait_stream(side)
        result.copy_(z)
    del y, z
    with torch.cuda.stream(side):
        junk = [torch.full((1 << 16,), 7.0, device="cuda") for _ in range(64)]
    torch.cuda.synchronize()
    g.replay()
    torch.cuda.synchronize()
    assert result.eq(4).all()
    assert all(one.eq(7).all() for one in junk)


def test_a_whole_training_loop_runs_inside_a_node():
    def world():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True, fused=True)
        x, y = torch.randn(32, 64, device="cuda"), torch.randn(32, 64, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.synchronize()
        return model, step

    eager, eager_step = world()
    count, loss = 0, torch.tensor(2.0, device="cuda")
    while loss > 0.9 and count < 200:
        loss = eager_step()
        count += 1
    model, step = world()
    steps, last = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
    more, g = torch.tensor(True, device="cuda"), tp.CUDAGraph()
    with tp.graph(g, capture_error_mode="thread_local"):
        steps.zero_()
        more.fill_(True)
        with g.while_loop(more):
            last.copy_(step())
            steps.add_(1)
            more.copy_((last > 0.9) & (steps < 200))
    g.replay()
    assert steps.item() == count
    assert torch.equal(last, loss)
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours, theirs)


# Its twin takes the very same steps eagerly, which torch advises against.
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")
def test_an_if_around_the_optimizer_skips_a_step_that_is_not_finite():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True, fused=True)
    x, fine = torch.randn(4, 8, device="cuda"), torch.tensor(True, device="cuda")

    def gradients():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients()
        optimizer.step()
    torch.cuda.synchronize()
    optimizer.zero_grad(set_to_none=True)
    twin, eager = copy.deepcopy((model, optimizer))
    g = tp.CUDAGraph()
    with tp.graph(g, capture_error_mode="thread_local"):
        gradients()
        fine.copy_(torch.stack([p.grad.sum() for p in model.parameters()]).isfinite().all())
        with g.if_then(fine):
            optimizer.step()
    before, good = model.weight.detach().clone(), x.clone()
    x[0, 0] = float("nan")
    g.replay()
    assert torch.equal(model.weight, before)
    x.copy_(good)
    g.replay()
    twin(x).square().mean().backward()
    eager.step()
    assert not torch.equal(model.weight, before)
    assert_all_equal(model.state_dict(), twin.state_dict())


def test_forty_conditionals_stand_in_one_graph():
    count, flag, g = (
        torch.zeros((), device="cuda"),
        torch.tensor(True, device="cuda"),
        tp.CUDAGraph(),
    )
    with tp.graph(g):
        for _ in range(40):
            with g.if_then(flag):
                count.add_(torch.ones((), device="cuda"))
    g.replay()
    assert count.item() == 40


def test_conditionals_go_into_a_capture_of_torchs_own():
    x, flag = torch.ones(4, device="cuda"), torch.tensor(True, device="cuda")
    theirs = torch.cuda.CUDAGraph()
    with torch.cuda.graph(theirs, capture_error_mode="thread_local"):
        assert tp.is_current_stream_capturing()
        y = tp.cond(flag, lambda: x * 2, lambda: x * 3)
    for value, expected in ((True, 2.0), (False, 3.0)):
        flag.fill_(value)
        theirs.replay()
        assert y.tolist() == [expected] * 4


@pytest.mark.parametrize("tracked", [True, False])
def test_random_numbers_in_a_body_are_refused(tracked):
    flag, x, g = torch.tensor(True, device="cuda"), torch.ones(4, device="cuda"), tp.CUDAGraph()
    with pytest.raises(tp.OperationRefused), tp.graph(g, track_operands=tracked), g.if_then(flag):
        torch.nn.functional.dropout(x)
