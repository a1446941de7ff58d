"""Recording on the CPU: nothing runs, nothing is changed, and replays are what eager would do."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes

import tensorplay_torch as tp
from tensorplay_core import CaptureError, OperationRefused, ReplayError
from tensorplay_torch.resources.storages import key_of
from tests.equality import assert_all_equal

from .programs import NAMES, Programs, flat, same, weight

pytestmark = [
    # torch.func compiles derivatives by torch.jit.script, and mkldnn.flags looks at TF32.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grad", [True, False])
def test_replays_compute_what_eager_code_would(record, name, grad):
    program = getattr(Programs(), name)
    x = torch.full((4, 6), float("nan")).requires_grad_(grad or name == "gradients")
    captured = record(program, x)
    addresses = [tensor.data_ptr() for tensor in flat(captured.result)]
    for seed in range(12):
        with torch.no_grad():
            x.copy_(torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)))
        # torch.manual_seed notes its stack for each kind of device, which takes its time.
        torch.default_generator.manual_seed(seed)
        captured.replay()
        drawn = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)
        expected = program(x)
        assert torch.equal(torch.get_rng_state(), drawn)
        for ours, theirs in zip(flat(captured.result), flat(expected), strict=True):
            assert same(ours, theirs), (name, seed, ours, theirs)
    assert [tensor.data_ptr() for tensor in flat(captured.result)] == addresses


def test_nothing_runs_during_a_capture(record):
    x, total = torch.ones(3), torch.zeros(3)
    ran = []

    @torch.library.custom_op("tensorplay_tests::marks", mutates_args=())
    def marks(x: torch.Tensor) -> torch.Tensor:
        ran.append(True)
        return x.clone()

    marks.register_fake(torch.empty_like)

    def body():
        total.add_(marks(x * 2))
        return x + 1, (x > 0).long()

    captured = record(body)
    assert not ran
    assert total.tolist() == [0, 0, 0]
    fresh, integers = captured.result
    assert fresh.isnan().all()
    assert (integers == torch.iinfo(torch.long).max).all()
    captured.replay()
    assert ran == [True]
    assert total.tolist() == [2, 2, 2]
    assert (fresh + integers).tolist() == [3, 3, 3]


def test_a_capture_changes_nothing(record):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv1d(2, 3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(), torch.nn.Flatten()
    )
    outside = torch.randn(4, requires_grad=True)
    pending = (outside * outside).sum()
    x = torch.randn(5, 2, 4)

    def body():
        with torch.no_grad():
            outside.mul_(2)
        model(x).sum().backward()

    versions = [tensor._version for tensor in (outside, *model.state_dict().values())]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator, value = torch.get_rng_state(), outside.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    record(body)
    assert [tensor._version for tensor in (outside, *model.state_dict().values())] == versions
    assert_all_equal(model.state_dict(), state)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(outside, value)
    assert all((parameter.grad == 1).all() for parameter in model.parameters())
    assert torch.is_grad_enabled()
    pending.backward()  # Nothing was written that it needs.
    assert torch.equal(outside.grad, 2 * value)


class Modes:
    """Ways to surround a replay, none of which may matter."""

    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Modes.Counting.seen += 1
            return func(*args, **(kwargs or {}))

    plain = torch.enable_grad
    no_grad = torch.no_grad
    inference = torch.inference_mode
    dispatch = Counting

    @staticmethod
    def autocast():
        return torch.autocast("cpu", dtype=torch.bfloat16)

    @staticmethod
    def default_device():
        return torch.device("meta")


@pytest.mark.parametrize(
    "mode", ["plain", "no_grad", "inference", "dispatch", "autocast", "default_device"]
)
def test_what_is_on_around_a_replay_does_not_matter(record, mode):
    x, w = torch.randn(4, 4), weight(4, 4)

    def body():
        y = (x @ w).relu()
        return y, torch.autograd.grad(y.sum(), w)[0]

    captured = record(body)
    with getattr(Modes, mode)():
        captured.replay()
        on = torch.is_grad_enabled()
    assert on == (mode not in {"no_grad", "inference"})
    assert Modes.Counting.seen == 0
    for ours, theirs in zip(captured.result, body(), strict=True):
        assert same(ours, theirs)


def test_a_replay_runs_in_any_thread(record):
    x = torch.randn(4)
    captured = record(lambda: x * 2)
    thread = threading.Thread(target=captured.replay)
    thread.start()
    thread.join()
    assert same(captured.result, x * 2)


def test_a_replay_counts_as_a_write_to_what_was_there_before(record):
    x, born = torch.randn(3), []
    captured = record(lambda: born.append(x.add_(1) * 2))
    before, inner = x._version, born[0]._version
    captured.replay()
    assert x._version == before + 1
    assert born[0]._version == inner


def test_switches_thrown_inside_a_capture_hold_at_replays(record):
    seen = []

    @torch.library.custom_op("tensorplay_tests::looks", mutates_args=())
    def looks(x: torch.Tensor) -> torch.Tensor:
        seen.append((torch.backends.mkldnn.enabled, torch.get_num_threads()))
        return x.clone()

    looks.register_fake(torch.empty_like)
    threads = torch.get_num_threads()

    def body():
        x = looks(torch.ones(2))
        with torch.backends.mkldnn.flags(enabled=False):
            torch.set_num_threads(1)
            x = looks(x)
            torch.set_num_threads(threads)
        return looks(x)

    record(body).replay()
    assert seen == [(True, threads), (False, 1), (True, threads)]
    assert (torch.backends.mkldnn.enabled, torch.get_num_threads()) == seen[0]


def test_each_node_says_where_it_comes_from(record):
    x = torch.randn(3)
    captured = record(lambda: x + 1)
    assert captured.names == ["aten.add.Tensor"]
    assert captured.attributes[0]["where"].startswith(f"{__file__}:")
    assert captured.recorder.node_count == 1


def test_wrong_calls_fail_in_the_capture_as_they_do_in_eager_code(record):
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    for wrong in (
        lambda: a @ b,
        lambda: a.add_(torch.randn(5)),
        lambda: a.view(5),
        lambda: a.sum(5),
    ):
        with pytest.raises((RuntimeError, IndexError)) as eager:
            wrong()
        with pytest.raises(type(eager.value)) as captured:
            record(wrong)
        assert str(captured.value) == str(eager.value)
        assert any(__file__ in note for note in captured.value.__notes__)
    assert same(record(lambda: a + b).result.isnan(), torch.ones(2, 3, dtype=torch.bool))


def test_an_operation_that_lies_about_its_result_is_found_out(record):
    @torch.library.custom_op("tensorplay_tests::lies", mutates_args=())
    def lies(x: torch.Tensor) -> torch.Tensor:
        return x[:1].clone()

    lies.register_fake(torch.empty_like)
    x = torch.randn(3)
    captured = record(lambda: lies(x))
    with pytest.raises(ReplayError, match=r"tensorplay_tests\.lies"):
        captured.replay()


def test_recurrent_captures_of_one_function_agree(record):
    x = torch.randn(3)
    captured = [record(lambda: torch.dropout(x.exp(), 0.5, True)) for _ in range(3)]
    for one in captured:
        torch.manual_seed(0)
        one.replay()
    assert len({key_of(one.result) for one in captured}) == 3
    assert all(same(one.result, captured[0].result) for one in captured)


def test_a_failed_capture_leaves_the_next_one_alone(record):
    x = torch.randn(3)
    with pytest.raises(OperationRefused):
        record(lambda: (x * 2).tolist())
    captured = record(lambda: x * 2)
    captured.replay()
    assert same(captured.result, x * 2)


def works():
    """Torch does, and nothing of the capture's is on."""
    assert dispatch_modes() == []
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert not (torch.ones(2, requires_grad=True) + 1).is_inference()


@pytest.mark.parametrize("again", [False, True])
def test_inference_mode_left_inside_the_capture_is_found_out(again):
    """What comes after it in the block is not seen, also if it is entered once more."""
    outer, inner, x = torch.inference_mode(), torch.inference_mode(), torch.ones(2)

    def crossed():
        with tp.graph(tp.CUDAGraph(device="cpu")):
            outer.__exit__(None, None, None)
            if again:
                inner.__enter__()
            x * 10

    outer.__enter__()
    with pytest.raises(CaptureError, match=r"inference mode \(True\) was left inside"):
        crossed()
    if again:
        assert torch.is_inference_mode_enabled()
        inner.__exit__(None, None, None)
    works()


@pytest.mark.parametrize("form", ["by itself", "in a generator", "two", "off"])
def test_inference_mode_still_on_after_the_capture_is_as_its_exit_leaves_it(form):
    def suspended():
        with torch.inference_mode():
            yield

    before = torch.inference_mode()
    if form == "off":
        before.__enter__()
    entered = [torch.inference_mode(form != "off") for _ in range(1 + (form == "two"))]
    generator = suspended()

    def crossed():
        with tp.graph(tp.CUDAGraph(device="cpu")):
            torch.ones(2)
            if form == "in a generator":
                next(generator)
            else:
                for one in entered:
                    one.__enter__()

    with pytest.raises(CaptureError, match="inside the capture and is still on"):
        crossed()
    assert torch.is_inference_mode_enabled() == (form != "off")
    if form == "in a generator":
        generator.close()
    else:
        for one in reversed(entered):
            one.__exit__(None, None, None)
    if form == "off":
        assert torch.is_inference_mode_enabled()
        torch.ones(2) * 2
        before.__exit__(None, None, None)
    works()
    with tp.graph(tp.CUDAGraph(device="cpu")) as again:
        y = torch.ones(2) * 2
    again.replay()
    assert y.tolist() == [2.0] * 2


def test_inference_mode_that_is_nested_does_not_matter(record):
    x = torch.randn(3)

    def body():
        with torch.inference_mode():
            y = x * 2
        with torch.inference_mode(False):
            return y + x

    with torch.inference_mode():
        captured = record(body)
    assert not torch.is_inference_mode_enabled()
    captured.replay()
    assert torch.equal(captured.result, x * 2 + x)
    works()
