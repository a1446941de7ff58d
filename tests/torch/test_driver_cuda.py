"""The torch driver on a GPU: what only CUDA can show. The suite runs there as well."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import warnings
from contextlib import contextmanager

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_core import select

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def clean():
    """Every test leaves the device usable: eager work and random numbers go on."""
    torch.cuda.synchronize()
    before = torch.cuda.current_stream()
    yield
    assert torch.cuda.current_stream() == before
    assert not torch.cuda.is_current_stream_capturing()
    torch.nn.functional.dropout(torch.ones(8, device="cuda"))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def record(work, **options):
    g = tp.CUDAGraph()
    with tp.graph(g, **options):
        result = work()
    return g, result


def held():
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def executable(g):
    return g._executable


@contextmanager
def no_waiting():
    """What waits for the device inside raises."""
    with warnings.catch_warnings():
        # torch calls the mode a prototype: it need not see every wait.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def warm_up_products():
    """What torch makes once a thread, for matrix products, cannot be made inside a capture."""
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")


# launching


def test_replays_go_direct_after_the_first_and_stay_right():
    x = torch.zeros(4, device="cuda")
    g, y = record(lambda: x * 2 + 1)
    for value in range(1, 20):
        x.fill_(value)
        g.replay()
        assert y.tolist() == [2.0 * value + 1] * 4
        assert executable(g).draws is False


def test_replays_need_no_synchronisation():
    x = torch.ones(4, device="cuda")
    g, _ = record(lambda: x * 2)
    g.replay()
    with no_waiting():
        for _ in range(10):
            g.replay()


def test_a_graph_that_draws_goes_through_torch_and_follows_the_generator():
    x = torch.ones(256, device="cuda")
    g, y = record(lambda: torch.nn.functional.dropout(x))
    torch.manual_seed(4)
    eager = [torch.nn.functional.dropout(x) for _ in range(4)]
    state = torch.cuda.get_rng_state()
    torch.manual_seed(4)
    for expected in eager:
        g.replay()
        assert torch.equal(y, expected)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert executable(g).draws is True


def test_streams_given_as_objects_and_handles_order_the_replay():
    x, total = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    g, _ = record(lambda: total.add_(x))
    side = torch.cuda.Stream()
    for given in (side, side.cuda_stream, None):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(50):
                x.add_(1)
                g.replay(given)
                x.sub_(1)
        torch.cuda.current_stream().wait_stream(side)
    assert total.eq(150).all()


def test_threads_replay_one_graph_together():
    total = torch.zeros(1, device="cuda")
    g, _ = record(lambda: total.add_(1))

    def run():
        for _ in range(200):
            g.replay()
        torch.cuda.synchronize()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    torch.cuda.synchronize()
    assert total.item() == 800


def test_no_graph_is_replayed_inside_a_capture():
    total, x = torch.zeros(1, device="cuda"), torch.ones(8, device="cuda")
    inner, _ = record(lambda: total.add_(1))
    drawing, _ = record(lambda: torch.nn.functional.dropout(x))
    inner.replay()
    drawing.replay()
    with pytest.raises(tp.CaptureInvalidated, match="captures no launch"):
        record(inner.replay)
    with pytest.raises(tp.GraphStateError, match="random generators"):
        record(drawing.replay)
    inner.replay()
    drawing.replay()
    assert total.item() == 2


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
def test_a_graph_runs_on_its_own_device_whichever_is_current():
    x = torch.zeros(4, device="cuda:1")
    g = tp.CUDAGraph(device=1)
    with tp.graph(g):
        assert torch.cuda.current_device() == 1
        y = x + 1
    assert torch.cuda.current_device() == 0
    for value in range(3):
        x.fill_(value)
        torch.cuda.synchronize(1)
        g.replay()
        torch.cuda.synchronize(1)
        assert y.tolist() == [value + 1.0] * 4
    assert torch.cuda.current_device() == 0


# memory


def test_memory_is_back_after_every_end():
    x = torch.randn(512, 512, device="cuda")
    warm_up_products()
    record(lambda: torch.relu(x @ x))[0].close()
    before = held()
    for _ in range(3):
        g, y = record(lambda: torch.relu(x @ x) @ x)
        g.replay()
        g.close()
        del g, y
    # cuBLAS keeps one workspace a stream, and streams are used again.
    assert held() <= before
    torch.cuda.empty_cache()


def test_a_hundred_captures_of_products_do_not_grow():
    x = torch.randn(256, 256, device="cuda")
    warm_up_products()
    for _ in range(3):
        record(lambda: x @ x)[0].close()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    for _ in range(100):
        record(lambda: x @ x)[0].close()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved + (64 << 20)


def test_operands_live_as_long_as_the_graph():
    total = torch.zeros(1 << 16, device="cuda")
    operands = [torch.full((1 << 16,), 3.0, device="cuda")]
    g, _ = record(lambda: total.add_(operands[0]))
    operands.clear()
    junk = [torch.full((1 << 16,), 9.0, device="cuda") for _ in range(64)]
    g.replay()
    assert total.eq(3).all()
    before = held()
    g.close()
    del g
    assert held() < before
    assert len(junk) == 64


def test_a_tensor_outlives_its_graph_and_its_pool_serves_again():
    x, pool = torch.ones(1 << 16, device="cuda"), tp.graph_pool_handle()
    g, y = record(lambda: x * 2, pool=pool)
    g.replay()
    g.close()
    again, z = record(lambda: x * 3, pool=pool)
    again.replay()
    assert y.eq(2).all()
    assert z.eq(3).all()


@pytest.mark.parametrize("kind", ["MemPool", "handle", "CUDAGraph"])
def test_pools_of_torchs_own_are_taken(kind):
    x = torch.ones(1 << 16, device="cuda")
    theirs = torch.cuda.CUDAGraph()
    with torch.cuda.graph(theirs):
        z = x * 5
    pool = {
        "MemPool": torch.cuda.MemPool,
        "handle": torch.cuda.graph_pool_handle,
        "CUDAGraph": lambda: theirs,
    }[kind]()
    g, y = record(lambda: x * 2, pool=pool)
    assert g.memory.allocated_bytes >= y.nbytes
    theirs.replay()
    g.replay()
    assert y.eq(2).all()
    assert z.eq(5).all()
    g.close()


def test_statistics_count_bodies_too():
    x, flag, g = (
        torch.ones(1 << 20, device="cuda"),
        torch.tensor(True, device="cuda"),
        tp.CUDAGraph(),
    )
    with tp.graph(g), g.if_then(flag):
        y = x * 2
    assert g.memory.allocated_bytes >= y.nbytes
    g.close()


# conditionals


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
    assert not torch.equal(model.weight, before)
    assert model.weight.isfinite().all()


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


# failures


def test_a_user_error_leaves_no_trace():
    x = torch.randn(1 << 18, device="cuda")
    before, random = held(), torch.cuda.get_rng_state()
    with pytest.raises(KeyError), tp.graph(tp.CUDAGraph()):
        torch.nn.functional.dropout(x * 2)
        raise KeyError
    assert held() == before
    assert torch.equal(torch.cuda.get_rng_state(), random)
    g, y = record(lambda: x * 2)
    g.replay()
    assert torch.equal(y, x * 2)


@pytest.mark.parametrize("tracked", [True, False])
def test_reading_a_value_breaks_nothing_for_good(tracked):
    """Untracked, the call reaches CUDA and breaks the capture; torch must be mended then."""
    x = torch.randn(1 << 18, device="cuda")
    before = held()
    for _ in range(3):
        with (
            pytest.raises(RuntimeError) as caught,
            tp.graph(tp.CUDAGraph(), track_operands=tracked),
        ):
            torch.nn.functional.dropout(x)
            (x * 2).sum().item()
        assert isinstance(caught.value, tp.OperationRefused) == tracked
        del caught
        torch.nn.functional.dropout(x)  # A generator left capturing would refuse this.
        torch.cuda.empty_cache()
        g, y = record(lambda: torch.nn.functional.dropout(x) * 2)
        g.replay()
        g.close()
        del g, y
    assert held() <= before + 4096


def test_a_fork_that_is_not_joined_is_named():
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with pytest.raises(tp.UnjoinedWork), tp.graph(tp.CUDAGraph()):
        x.add_(1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
    g, y = record(lambda: x * 2)
    g.replay()
    assert y.eq(2).all()


BROKEN_BODY = """
    import torch, tensorplay_torch as tp
    x, flag = torch.ones(4, device="cuda"), torch.tensor(True, device="cuda")
    g = tp.CUDAGraph()
    try:
        with tp.graph(g, track_operands={tracked}, capture_error_mode="thread_local"):
            x.add_(1)
            with g.if_then(flag):
                y = x * 2
                {illegal}
    except RuntimeError as error:
        print("refused", type(error).__name__)
    torch.cuda.synchronize()
    torch.nn.functional.dropout(x)
    g = tp.CUDAGraph()
    with tp.graph(g, capture_error_mode="thread_local"), g.if_then(flag):
        x.add_(1)
    g.replay()
    torch.cuda.synchronize()
    print("well", x.tolist())
"""


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("illegal", ["y.sum().item()", "1 / 0", "raise RuntimeError('mine')"])
def test_a_body_that_breaks_does_not_end_the_process(tracked, illegal):
    source = textwrap.dedent(BROKEN_BODY).format(tracked=tracked, illegal=illegal)
    source = source.replace("except RuntimeError", "except (RuntimeError, ZeroDivisionError)")
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "well [2.0, 2.0, 2.0, 2.0]", done.stdout


def test_a_host_tensor_is_not_written_by_captured_work():
    x, on_host = torch.ones(4, device="cuda"), torch.zeros(4)
    with pytest.raises(tp.OperationRefused), tp.graph(tp.CUDAGraph()):
        x.add_(1)
        on_host.add_(1)


def test_an_input_that_died_is_found_before_the_launch():
    total, operands = torch.zeros(8, device="cuda"), [torch.ones(8, device="cuda")]
    g, _ = record(lambda: total.add_(operands[0]), check_input_liveness=True)
    g.replay()
    operands.clear()
    gc.collect()
    with pytest.raises(tp.StaleGraph, match="died"):
        g.replay()
    assert total.eq(1).all()


def test_running_out_of_memory_in_a_capture_is_survived():
    with pytest.raises(torch.OutOfMemoryError), tp.graph(tp.CUDAGraph()):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    g, y = record(lambda: torch.ones(4, device="cuda") * 2)
    g.replay()
    assert y.eq(2).all()


# staging


def test_staged_launches_see_their_own_inputs():
    static = [torch.zeros(64, 33, device="cuda") for _ in range(16)]
    g, y = record(lambda: torch.stack(static).sum(0))
    plan = g.stage(static, [y])
    inputs = [[torch.randn(64, 33, device="cuda") for _ in static] for _ in range(50)]
    owned = [plan(fresh)[0] for fresh in inputs]
    for fresh, result in zip(inputs, owned, strict=True):
        assert torch.equal(result, torch.stack(fresh).sum(0))


def test_staged_launches_on_another_stream_outlive_their_inputs():
    static = torch.zeros(1 << 20, device="cuda")
    g, y = record(lambda: static * 2)
    plan, side, owned = g.stage([static], [y]), torch.cuda.Stream(), []
    for value in range(20):
        fresh = torch.full((1 << 20,), float(value), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        owned.append(plan([fresh], stream=side)[0])
        del fresh
        torch.full((1 << 20,), -1.0, device="cuda")
    torch.cuda.synchronize()
    for value, result in enumerate(owned):
        assert result.eq(2 * value).all()


def test_staging_a_graph_that_draws_goes_step_by_step_and_right():
    static = torch.zeros(256, device="cuda")
    g, y = record(lambda: torch.nn.functional.dropout(static))
    plan = g.stage([static], [y])
    inputs = [torch.randn(256, device="cuda") for _ in range(4)]
    torch.manual_seed(2)
    expected = [torch.nn.functional.dropout(one) for one in inputs]
    torch.manual_seed(2)
    for one, value in zip(inputs, expected, strict=True):
        (result,) = plan([one])
        assert torch.equal(result, value)


def test_staging_converts_when_asked_by_stage_and_launch():
    static = torch.zeros(4, 6, device="cuda")
    g, y = record(lambda: static * 2)
    for given in (
        torch.ones(6, 4, device="cuda").t(),
        torch.ones(4, 6, dtype=torch.float64, device="cuda"),
        torch.ones(4, 6),
        torch.ones(4, 6, dtype=torch.complex64, device="cuda").conj().real,
    ):
        static.zero_()
        g.stage_and_launch([static], [given])
        assert y.eq(2).all()
    with pytest.raises(tp.SignatureMismatch):
        g.stage_and_launch([static], [torch.ones(6, device="cuda")])


def test_an_update_in_place_runs_the_new_work_with_its_own_operands():
    total = torch.zeros(4, device="cuda")
    first, _ = record(lambda: total.add_(torch.full_like(total, 1)))
    first.replay()
    for value in (10.0, 100.0):
        operand = torch.full((4,), value, device="cuda")
        second, _ = record(lambda operand=operand: total.add_(operand * 1))
        first.update(second)
        del operand
        first.replay()
    assert total.tolist() == [111.0] * 4


def test_facts_name_the_device_and_the_driver_beneath():
    facts = select("torch").describe()
    assert torch.cuda.get_device_name(0) in facts["cuda:0"]
    assert any(key.startswith("cuda: ") for key in facts)
