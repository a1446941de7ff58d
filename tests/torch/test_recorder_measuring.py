"""Random operations run on stand-ins without a draw from the generator that all threads share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_torch.cpu.measuring import drawing_elsewhere

aten = torch.ops.aten
HALF = {"dtype": torch.bfloat16}

DRAWS = {
    "dropout": lambda x: aten.native_dropout(x, 0.5, True),
    "dropout by default": lambda x: aten.native_dropout(x, 0.25, None),
    "dropout of all": lambda x: aten.native_dropout(x, 1.0, True),
    "dropout into others": lambda x: aten.native_dropout.out(
        x, 0.5, True, out0=torch.empty(0, dtype=x.dtype), out1=torch.empty(0, dtype=torch.bool)
    ),
    "uniform": lambda x: torch.rand_like(x),
    "normal": lambda x: torch.randn_like(x, memory_format=torch.contiguous_format),
    "integers": lambda x: torch.randint_like(x, 3, 7),
    "in place": lambda x: x.clone().uniform_(),
    "by probabilities": lambda x: torch.bernoulli(x),
    "around means": lambda x: torch.normal(x.float(), 1.0),
    "in order": lambda x: torch.poisson(x),
    "leaky": lambda x: F.rrelu(x, training=True),
    "samples": lambda x: torch.multinomial(x.flatten(), 1),
    "from nothing": lambda x: torch.rand(x.shape, dtype=x.dtype),
    "a permutation": lambda x: torch.randperm(x.numel()),
    "into another": lambda x: torch.rand(x.shape, out=torch.empty(0)),
}


class Listening(torch.utils._python_dispatch.TorchDispatchMode):
    """Runs each operation, and what stands for it; notes the layouts of both."""

    def __init__(self):
        super().__init__()
        self.pairs = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            before = torch.get_rng_state()
            other = drawing_elsewhere(func, args, kwargs)(*args, **kwargs)
            assert torch.equal(torch.get_rng_state(), before), func
            self.pairs.append((layouts(result), layouts(other)))
        return result


def layouts(result):
    found = result if isinstance(result, tuple) else (result,)
    return [(one.shape, one.stride(), one.dtype) for one in found]


def strided(data, dtype):
    """A tensor of some layout, with gaps, repeats and in any order."""
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    x = torch.full([2 * size for size in sizes], 0.5, dtype=dtype)
    x = x.permute(data.draw(st.permutations(range(x.dim()))))
    if data.draw(st.booleans()):
        x = x[..., ::2]
    if data.draw(st.booleans()):
        x = x[:1].expand(3, *x.shape[1:])
    return x[:0] if data.draw(st.integers(0, 9)) == 0 else x


@pytest.mark.parametrize("name", DRAWS)
@given(data=st.data())
def test_what_runs_in_its_place_returns_the_same_layouts(name, data):
    x = strided(data, data.draw(st.sampled_from([torch.float32, torch.bfloat16])))
    if name in ("samples", "dropout into others") and not x.numel():
        return
    with Listening() as listening:
        DRAWS[name](x)
    for expected, found in listening.pairs:
        assert found == expected
    assert listening.pairs


def test_what_does_not_draw_is_run_itself():
    x = torch.ones(2)
    assert drawing_elsewhere(aten.native_dropout.default, (x, 0.5, False), {}) is (
        aten.native_dropout.default
    )


def test_wrong_arguments_are_refused_as_in_eager_code(record):
    for wrong in (
        lambda: aten.native_dropout(torch.ones(3, **HALF), 2.0, True),
        lambda: aten.native_dropout(torch.ones(3, dtype=torch.int64), 0.5, True),
    ):
        with pytest.raises(RuntimeError) as eager:
            wrong()
        with pytest.raises(type(eager.value)):
            record(wrong)


def test_another_thread_draws_while_large_operations_are_measured(record):
    x, drawn, done = torch.ones(1 << 22, **HALF), [], threading.Event()

    def draw():
        while not done.is_set():
            drawn.append(torch.randint(1 << 60, (1,)).item())

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        record(lambda: F.dropout(x, 0.5))
    finally:
        done.set()
        thread.join()
    assert len(drawn) == len(set(drawn)) > 1


def test_several_threads_measure_at_once(record):
    before, together = torch.get_rng_state(), threading.Barrier(4)

    def work(number):
        together.wait()
        for size in range(30):
            x = torch.ones(4099 * (4 * size + number) + 1, **HALF)
            record(lambda x=x: [F.dropout(x, 0.5) for _ in range(3)])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_replay_draws_what_eager_code_does(record):
    x = torch.ones(3, 5, **HALF)
    captured = record(lambda: (F.dropout(x, 0.5), torch.rand_like(x.t()), torch.bernoulli(x / 2)))
    torch.manual_seed(5)
    captured.replay()
    torch.manual_seed(5)
    expected = F.dropout(x, 0.5), torch.rand_like(x.t()), torch.bernoulli(x / 2)
    assert all(map(torch.equal, captured.result, expected))
