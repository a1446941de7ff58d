"""Laws 2 and 5 on the CPU: a capture changes nothing, and a failure in one leaves no trace."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import tensorplay_torch as tp
from tensorplay_core import reclaim, select


class World:
    """A model, its optimizer with state, an input: all that a capture could harm."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(),
            torch.nn.Linear(8, 1),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True, capturable=True)
        self.x = torch.randn(6, 4)
        self.step()

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def all(self) -> dict[str, object]:
        runtime = select("torch")
        return {
            "stream": runtime.current_stream(torch.device("cpu")),
            "grad mode": torch.is_grad_enabled(),
            "inference mode": torch.is_inference_mode_enabled(),
            "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()),
            "random": torch.get_rng_state().tolist(),
            "model": {k: v.tolist() for k, v in self.model.state_dict().items()},
            "versions": [p._version for p in self.model.parameters()],
            "optimizer": repr(self.optimizer.state_dict()),
            "state": [id(v) for s in self.optimizer.state.values() for v in s.values()],
            "x": self.x.tolist(),
            "collector": (gc.isenabled(), gc.get_threshold()),
            "captures": reclaim.captures_live(),
            "capturing": tp.is_current_stream_capturing(),
            "dispatch modes": len(_get_current_dispatch_mode_stack()),
            "function modes": len(_get_current_function_mode_stack()),
            "threads": threading.active_count(),
        }


@contextmanager
def untouched(world: World) -> Iterator[None]:
    before, grads = world.all(), [p.grad for p in world.model.parameters()]
    try:
        yield
    finally:
        assert world.all() == before
        # What the block itself unbound (zero_grad) stays so; what it bound is let go of.
        for was, p in zip(grads, world.model.parameters(), strict=True):
            assert p.grad is None or p.grad is was


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    # The next capture works, and so does eager work after it.
    g, y = tp.CUDAGraph(device="cpu"), torch.zeros(2)
    with tp.graph(g):
        y.add_(1)
    g.replay()
    assert y.tolist() == [1.0, 1.0]
    made.step()


def graph() -> tp.CUDAGraph:
    return tp.CUDAGraph(device="cpu")


def test_a_capture_changes_nothing_but_bindings(world):
    before = world.all()
    with tp.graph(graph()):
        world.step()
    assert world.all() == before


def test_a_block_that_raises_leaves_no_trace(world):
    with untouched(world), pytest.raises(KeyError, match="mine") as caught, tp.graph(graph()):
        world.step()
        raise KeyError("mine")
    assert caught.value.__cause__ is None
    assert any("the capture was discarded" in note for note in caught.value.__notes__)


def test_an_operation_that_fails_names_itself_and_the_line(world):
    with untouched(world), pytest.raises(RuntimeError) as caught, tp.graph(graph()):
        world.step()
        torch.mm(world.x, world.x)
    words = "".join(traceback.format_exception(caught.value))
    assert "aten.mm" in words
    assert "test_driver_failures.py" in words


@pytest.mark.parametrize(
    "illegal",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: x.data_ptr(),
    ],
    ids=["item", "bool", "tolist", "numpy", "mask", "nonzero", "unique", "data_ptr"],
)
def test_what_reads_a_value_is_refused_by_name_and_line(world, illegal):
    with untouched(world), pytest.raises(tp.OperationRefused) as caught, tp.graph(graph()):
        world.step()
        illegal(world.x)
    error = caught.value
    assert error.operation
    assert "test_driver_failures.py" in error.where
    assert all(part.strip() for part in (error.doing, error.subject, error.met, error.remedy))


def test_a_failure_in_nested_bodies_leaves_no_trace(world):
    flag, more = torch.tensor(True), torch.tensor(True)
    with untouched(world), pytest.raises(ZeroDivisionError), tp.graph(graph()) as g:
        world.step()
        with g.while_loop(more):
            world.x.mul_(2)
            with g.if_else(flag) as (then, other):
                with then:
                    more.zero_()
                with other:
                    1 / 0  # noqa: B018


def test_a_refusal_in_a_body_leaves_no_trace(world):
    flag = torch.tensor(True)
    with (
        untouched(world),
        pytest.raises(tp.OperationRefused),
        tp.graph(graph()) as g,
        g.if_then(flag),
    ):
        world.x.sum().item()


def test_grad_mode_left_inside_is_put_back(world):
    with untouched(world), pytest.raises(KeyError), tp.graph(graph()):
        torch.set_grad_enabled(False)
        world.x.mul_(2)
        raise KeyError
    with untouched(world), tp.graph(graph()):
        torch.set_grad_enabled(False)
        world.x.mul_(2)


def test_failing_inside_no_grad_and_autocast_restores_them(world):
    with (
        untouched(world),
        pytest.raises(KeyError),
        tp.graph(graph()),
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
    ):
        world.model(world.x)
        raise KeyError
    with (
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
        untouched(world),
        pytest.raises(KeyError),
        tp.graph(graph()),
    ):
        world.model(world.x)
        raise KeyError


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_is_as_it_was(world, collecting):
    was = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        with untouched(world), pytest.raises(KeyError), tp.graph(graph()):
            assert not gc.isenabled()
            raise KeyError
    finally:
        (gc.enable if was else gc.disable)()


def test_optimizer_state_born_in_a_capture_is_refused_and_taken_back():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    with pytest.raises(tp.OperationRefused, match="Warm up first"), tp.graph(graph()):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert not optimizer.state
    assert model.weight.grad is None


def test_a_failed_capture_keeps_no_memory_even_with_its_frames_alive(world):
    import weakref

    storages = []
    with pytest.raises(KeyError) as caught, tp.graph(graph()):
        big = world.x.new_ones(1 << 20) * 2
        storages.append(weakref.ref(big.untyped_storage()))
        raise KeyError
    assert caught.value.__traceback__ is not None
    del big
    gc.collect()
    assert storages[0]() is None


def test_a_second_capture_in_the_thread_is_refused_and_harms_nothing(world):
    total, g = torch.zeros(()), graph()
    with tp.graph(g):
        total.add_(1)
        with pytest.raises(tp.CaptureError, match="another capture under way"):
            graph().capture_begin()
        total.add_(10)
    g.replay()
    assert total.item() == 11


@pytest.mark.gpu
def test_a_generator_of_another_device_is_refused(world):
    g = graph()
    g.register_generator_state(torch.Generator("cuda"))
    with untouched(world), pytest.raises(tp.ArgumentError), tp.graph(g):
        world.x.mul_(2)


def test_autocast_copies_from_before_are_no_frozen_inputs():
    """A low-precision copy of a weight made before the capture would never change again."""
    torch.manual_seed(0)
    w, x, g = torch.randn(4, 4, requires_grad=True), torch.randn(2, 4), graph()
    with torch.autocast("cpu", torch.bfloat16):
        x @ w  # The copy is cached now.
        with tp.graph(g):
            y = x @ w
    with torch.no_grad():
        w.mul_(2)
    g.replay()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(y, x @ w)


def test_autocast_copies_made_in_a_capture_do_not_reach_eager_work():
    torch.manual_seed(0)
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected = x @ w
        with tp.graph(graph()):
            x @ w
        assert torch.equal(x @ w, expected)


def test_other_threads_capture_and_work_meanwhile(world):
    failed = []

    def work() -> None:
        try:
            for value in range(20):
                x, g = torch.full((3,), float(value)), graph()
                with tp.graph(g, capture_error_mode="thread_local"):
                    y = x * 2
                g.replay()
                assert y.tolist() == [2.0 * value] * 3
                assert torch.equal(x + 1, torch.full((3,), value + 1.0))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for one in threads:
        one.start()
    for _ in range(5):
        with pytest.raises(KeyError), tp.graph(graph(), capture_error_mode="thread_local"):
            world.x.mul_(2)
            raise KeyError
    for one in threads:
        one.join()
    assert not failed


def test_a_refusal_that_is_swallowed_ends_the_capture(device):
    x, made = torch.ones(3, device=device), tp.CUDAGraph(device=device)
    with pytest.raises(tp.CaptureInvalidated, match="did not leave the block"), tp.graph(made):
        try:
            scale = x[0].item()
        except tp.OperationRefused:
            scale = 5.0
        x * scale
    with tp.graph(made):
        y = x * 2
    made.replay()
    assert y.tolist() == [2.0] * 3
