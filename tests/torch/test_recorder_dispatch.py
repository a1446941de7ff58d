"""The dispatch mode and its listeners: what they see, on which device, and how they end."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_in_torch_dispatch_mode,
)

from tensorplay_core import CaptureError, GraphStateError, OperationRefused
from tensorplay_core.protocols import CaptureOptions
from tensorplay_torch.tracking.dispatch import CaptureDispatch
from tensorplay_torch.tracking.operands import DeviceListener

META = torch.device("meta")
"""Stands in for a device whose captured work runs: its operations come by, and compute nothing."""


class Log:
    """Notes what comes by."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.done: list[str] = []

    def before(self, func, args, kwargs):
        self.begun.append(str(func))

    def after(self, func, args, kwargs, result):
        self.done.append(str(func))


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Watching:
    """A capture on the stand-in device, while entered."""

    def __init__(self, **options: bool) -> None:
        self.listener = DeviceListener("meta", CaptureOptions(**options))
        self.operands = self.listener.operands
        self.dispatch = CaptureDispatch([self.listener])

    def __enter__(self):
        self.dispatch.start()
        return self

    def __exit__(self, *_):
        self.dispatch.stop()


def test_listeners_see_every_operation_once():
    log = Log()
    dispatch = CaptureDispatch([log])
    x = torch.randn(3, requires_grad=True)
    dispatch.start()
    (x * 2).sum().backward()
    dispatch.stop()
    _ = x + 1
    assert log.begun == log.done
    assert log.begun.count("aten.mul.Tensor") == 2
    assert "aten.add.Tensor" not in log.begun


def test_a_listener_may_refuse_and_what_runs_may_fail():
    class Refuses(Log):
        def before(self, func, args, kwargs):
            super().before(func, args, kwargs)
            raise ValueError("not this one")

    log = Refuses()
    dispatch = CaptureDispatch([log])
    dispatch.start()
    with pytest.raises(ValueError, match="not this one") as refused:
        torch.ones(2)
    dispatch.stop()
    (note,) = refused.value.__notes__
    assert note.startswith("while capturing aten.ones at ")
    assert f"{__file__}:" in note
    assert not log.done


def test_something_else_may_run_in_place_of_the_operation():
    dispatch = CaptureDispatch(execute=lambda func, args, kwargs: torch.full((2,), 7.0))
    dispatch.start()
    made = torch.zeros(2)
    dispatch.stop()
    assert made.tolist() == [7, 7]


def test_subclasses_take_themselves_apart_first():
    log = Log()
    x = TwoTensor(torch.ones(2), torch.ones(2))
    dispatch = CaptureDispatch([log])
    dispatch.start()
    _ = x * 2
    dispatch.stop()
    assert log.begun == ["aten.mul.Tensor"] * 2


def test_compiled_functions_stay_compiled():
    torch.compiler.reset()
    calls = []

    def backend(module, inputs):
        def run(*args):
            calls.append("compiled")
            return module.forward(*args)

        return torch.compiler.disable(run)

    function = torch.compile(lambda x: x.sin() + 1, backend=backend)
    x = torch.randn(3)
    function(x)
    dispatch = CaptureDispatch([Log()])
    dispatch.start()
    function(x)
    dispatch.stop()
    function(x)
    assert calls == ["compiled"] * 3
    torch.compiler.reset()


@pytest.mark.parametrize("mode", [Seen, SeenFunctions])
def test_a_mode_left_inside_the_capture_is_found_out(record, mode):
    outer = mode()

    def body():
        outer.__exit__(None, None, None)

    outer.__enter__()
    with pytest.raises(CaptureError, match=f"{mode.__name__} was left inside the capture"):
        record(body)
    assert _get_current_dispatch_mode_stack() == []
    assert torch.overrides._get_current_function_mode_stack() == []
    assert not is_in_torch_dispatch_mode()


@pytest.mark.parametrize("mode", [Seen, SeenFunctions])
def test_a_mode_still_on_after_the_capture_is_left_on_alone(record, mode):
    inner = mode()
    with pytest.raises(CaptureError, match=f"{mode.__name__} was entered inside the capture"):
        record(inner.__enter__)
    stacks = (
        _get_current_dispatch_mode_stack(),
        torch.overrides._get_current_function_mode_stack(),
    )
    assert [*stacks[0], *stacks[1]] == [inner]
    inner.__exit__(None, None, None)
    assert _get_current_dispatch_mode_stack() == []
    assert not is_in_torch_dispatch_mode()


def test_modes_that_are_nested_do_not_matter(record):
    x = torch.randn(3)
    with Seen(), SeenFunctions():
        captured = record(lambda: x * 2)
    with Seen():
        captured.replay()
    assert torch.equal(captured.result, x * 2)


def test_a_capture_ends_in_the_thread_that_began_it(record):
    met = []

    class Own(record):
        def body(self):
            def end():
                try:
                    self.recorder.stop()
                except GraphStateError as error:
                    met.append(error)

            thread = threading.Thread(target=end)
            thread.start()
            thread.join()
            return torch.ones(2)

    captured = Own.__new__(Own)
    captured.__init__(lambda: captured.body())
    assert "thread" in str(met[0])
    captured.replay()
    assert captured.result.tolist() == [1, 1]


def test_other_threads_work_on_meanwhile(record):
    results = []

    def work():
        results.append(torch.ones(3).mul_(2).tolist())

    def body():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    record(body)
    assert results == [[2, 2, 2]]


def test_work_that_runs_is_tracked_too():
    x, w = torch.randn(3, 3, device=META), torch.randn(3, 3, device=META, requires_grad=True)
    host = torch.randn(3, 3)
    with Watching() as watching:
        y = x @ w
        y.add_(1)
        y.sum().backward()
        moved = torch.empty(3, 3, device=META)
        moved.copy_(host, non_blocking=True)
        mark = watching.operands.mark()
        x.mul_(2)
        assert watching.operands.writes_to(x, since=mark)
        assert not watching.operands.writes_to(w, since=0)
        assert watching.operands.is_born(y)
        assert watching.operands.is_born(w.grad)
    kept = {storage._cdata for storage in watching.operands.retained.values()}
    assert kept == {t.untyped_storage()._cdata for t in (x, w, host)}


def test_work_that_runs_is_watched_too():
    x, w = torch.randn(3, device=META), torch.randn(3, device=META)
    with Watching(check_input_liveness=True) as watching:
        x + w
    assert watching.operands.dead() == ()
    assert not watching.operands.retained
    del x
    (dead,) = watching.operands.dead()
    assert "aten.add.Tensor" in dead
    assert "on meta" in dead


def test_identities_are_not_taken_for_others():
    with Watching() as watching:
        for _ in range(50):
            torch.randn(64, device=META)  # Born, and dead at once.
            outside = torch.UntypedStorage(256, device="meta")  # No operation: from outside.
            tensor = torch.empty(0, device=META).set_(outside)
            assert not watching.operands.is_born(tensor)
            tensor.add_(1)
            assert outside._cdata in watching.operands.retained


ON_DEVICE = {
    "aten._local_scalar_dense": lambda x: x.sum().item(),
    "aten.nonzero": lambda x: x.nonzero(),
    "aten.index.Tensor": lambda x: x[x > 0],
    "aten.equal": lambda x: torch.equal(x, x),
    "aten._linalg_check_errors": lambda x: torch.linalg.inv(x),
    "aten._to_copy": lambda x: x.cpu(),
    "aten.copy_": lambda x: x.copy_(torch.ones(3, 3)),
    "aten.add_.Tensor": lambda x: OUTSIDE.add_(1),
    "aten._foreach_add_.Scalar": lambda x: torch._foreach_add_([OUTSIDE], 1),
}
OUTSIDE = torch.zeros(3, 3)


@pytest.mark.parametrize("name", ON_DEVICE)
def test_what_waits_or_runs_on_the_host_is_refused_before_it_breaks_the_capture(name):
    x = torch.randn(3, 3, device=META)
    with Watching(), pytest.raises(OperationRefused) as refusal:
        ON_DEVICE[name](x)
    assert refusal.value.operation == name
    assert refusal.value.where.startswith(f"{__file__}:")
    assert (OUTSIDE == 0).all()


def test_host_work_that_stays_on_the_host_is_fine():
    x = torch.randn(3, 3, device=META)
    with Watching():
        mean = torch.ones(4).mul_(2).mean().item()
        constant = torch.tensor([1.0, 2.0])
        constant.add_(1)
        x.add_(mean)
        x.copy_(torch.ones(3, 3), non_blocking=True)
    assert mean == 2


def test_watching_costs_little():
    """Beside an empty mode; a bound far from what is measured, against a change of kind."""
    import time

    x = torch.randn(4)

    def cost(dispatch):
        dispatch.start()
        try:
            best = min(_timed(lambda: x + 1) for _ in range(5))
        finally:
            dispatch.stop()
        return best

    def _timed(work, times=200):
        begun = time.perf_counter()
        for _ in range(times):
            work()
        return time.perf_counter() - begun

    assert cost(Watching().dispatch) < 10 * cost(CaptureDispatch())
