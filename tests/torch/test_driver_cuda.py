"""The torch driver on a GPU: what only CUDA can show. The suite runs there as well.

Here are launches, staging and updates; memory, conditionals and failures have their own modules.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_core import select

from .cuda_captures import record

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("clean")]


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
