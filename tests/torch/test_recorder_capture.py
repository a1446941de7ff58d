"""Recording on the CPU: nothing runs, nothing is changed, and replays are what eager would do."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tensorplay_core import OperationRefused, ReplayError
from tensorplay_torch.resources.storages import key_of

pytestmark = [
    # torch.func compiles derivatives by torch.jit.script, and mkldnn.flags looks at TF32.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning"),
]


def weight(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(*shape))


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return (
        ours.shape == theirs.shape
        and ours.dtype == theirs.dtype
        and ours.stride() == theirs.stride()
        and torch.equal(bits(ours), bits(theirs))
    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class Programs:
    """Functions of one tensor of shape (4, 6); what they write is made anew at each call."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.w = weight(6, 6)
        self.lstm = torch.nn.LSTM(6, 5, num_layers=2, dropout=0.4)
        self.attention = torch.nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.conv = torch.nn.Conv1d(4, 4, 3, padding=1)

    def arithmetic(self, x):
        return (x @ self.w).tanh().softmax(-1).cumsum(0)

    def views(self, x):
        y = x * 2
        return y.t()[1:].unsqueeze(0), y.view(2, 12)[:, ::3], y.unfold(1, 2, 2), y.expand(3, 4, 6)

    def writes(self, x):
        y = x.clone()
        y.mul_(3).add_(x, alpha=0.5)
        y[1:3].copy_(x[:2])
        y.t()[0].zero_()
        y.diagonal().fill_(2.5)
        return y

    def reshapes_in_place(self, x):
        y = x + 1
        y.t_()
        z = y * 2
        y.unsqueeze_(0)
        return y, z, y.squeeze_(0) + z

    def grows(self, x):
        x = x.detach()
        out = torch.empty(0)
        torch.add(x, x, out=out)
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
        torch.max(x, 1, out=(values, indices))
        y = torch.zeros(2)
        y.resize_(4, 6)
        return out, values, indices, y.copy_(x)

    def constants(self, x):
        offset = torch.tensor([1.0, 2.0])
        before = offset * x[:2, :2]
        offset.add_(x[0, 0])
        return before, offset, torch.tensor(3.0) * x

    def masks(self, x):
        y = x.clone()
        y[y > 0] = 0.5
        return y, torch.where(x > 0, x, 1), x.masked_fill(x < 0, 7)

    def draws(self, x):
        noise = torch.empty(3).uniform_(-1, 1)
        return F.dropout(x), torch.rand_like(x), noise, torch.randperm(7), x.sigmoid().bernoulli()

    def several(self, x):
        return torch.std_mean(x, 0), x.split(2), torch.linalg.svd(x), x.topk(2)

    def gradients(self, x):
        loss = F.layer_norm(x @ self.w, (6,)).square().mean()
        return loss, torch.autograd.grad(loss, (x, self.w), create_graph=True)

    def second_order(self, x):
        (first,) = torch.autograd.grad((x @ self.w).sin().sum(), self.w, create_graph=True)
        return torch.autograd.grad(first.square().sum(), self.w)

    def recurrent(self, x):
        y, (h, c) = self.lstm(x.unsqueeze(1))
        return y, torch.autograd.grad(y.sum() + h.sum() + c.sum(), list(self.lstm.parameters()))

    def attends(self, x):
        y = self.attention(x.unsqueeze(0))
        return y, torch.autograd.grad(y.sum(), self.attention.linear1.weight)

    def convolves(self, x):
        y = self.conv(x.unsqueeze(0))
        return y, torch.autograd.grad(y.square().sum(), self.conv.weight)

    def channels_last(self, x):
        y = x.reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        return F.interpolate(F.conv2d(y, self.w[:, :3, None, None]), scale_factor=2), y.relu()

    def transforms(self, x):
        def norm(row):
            return (row @ self.w).square().sum()

        return (
            torch.vmap(norm)(x),
            torch.func.jvp(torch.tanh, (x,), (x,)),
            torch.func.grad(norm)(x[0]),
        )

    def half(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, self.w), F.layer_norm(x.bfloat16(), (6,))

    def without_grad(self, x):
        with torch.no_grad():
            return self.lstm(x.unsqueeze(1))[0], x @ self.w

    def inference(self, x):
        with torch.inference_mode():
            y = F.linear(x, self.w).reshape(-1)
            return y.add_(1), y * 2

    def subclass(self, x):
        y = TwoTensor(x, x + 1) * 2
        return y.a, y.b

    def complex(self, x):
        z = torch.view_as_complex(x.reshape(4, 3, 2))
        return (z @ z.conj().t()).abs(), torch.fft.rfft(x), z.imag


NAMES = [name for name in vars(Programs) if not name.startswith("_")]


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for one in value for leaf in flat(one)]


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
        torch.manual_seed(seed)
        captured.replay()
        drawn = torch.get_rng_state()
        torch.manual_seed(seed)
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
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
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
    assert all(map(same, captured.result, body()))


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
