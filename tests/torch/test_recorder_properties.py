"""Any program of views, writes, new tensors and dropped names replays as it runs."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorplay_torch.resources.arena import Arena

SIDE = 4

MAKE = {
    "add": lambda a, b: a + b,
    "matmul": lambda a, b: (a @ b).clamp(-3, 3),
    "where": lambda a, b: torch.where(a > b, a, b),
    "clone": lambda a, b: a.clone(),
    "sum": lambda a, b: a.sum(0, keepdim=True).expand(SIDE, SIDE) + b,
    "sort": lambda a, b: a.sort(1)[0],
    "gather": lambda a, b: a.gather(1, b.argsort(1)),
    "zeros": lambda a, b: torch.zeros(SIDE, SIDE),
    "constant": lambda a, b: torch.tensor([[1.0, 2.0, 3.0, 4.0]]).repeat(SIDE, 1),
    "unfilled": lambda a, b: torch.empty(SIDE, SIDE).copy_(a),
    "draw": lambda a, b: torch.rand(SIDE, SIDE),
}
VIEW = {
    "transpose": lambda a: a.t(),
    "same": lambda a: a.view(SIDE, SIDE),
    "flip halves": lambda a: a.reshape(2, 2, SIDE).transpose(0, 1).reshape(SIDE, SIDE),
    "detach": lambda a: a.detach(),
}
WRITE = {
    "add_": lambda a, b: a.add_(b),
    "copy_": lambda a, b: a.copy_(b.t().clone()),
    "row": lambda a, b: a[1].mul_(b[2].clone()),
    "column": lambda a, b: a[:, 0].fill_(0.5),
    "mask": lambda a, b: a.masked_fill_(b > 1, -1.0),
    "out": lambda a, b: torch.sub(a, b.clone(), out=a),
    "zero_": lambda a, b: a.zero_(),
    "uniform_": lambda a, b: a.uniform_(-1, 1),
}

places = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("make"), st.sampled_from(sorted(MAKE)), places, places, places),
    st.tuples(st.just("view"), st.sampled_from(sorted(VIEW)), places, places, places),
    st.tuples(st.just("write"), st.sampled_from(sorted(WRITE)), places, places, places),
    st.tuples(st.just("drop"), st.just(""), places, places, places),
    st.tuples(st.just("outside"), st.sampled_from(sorted(WRITE)), places, places, places),
)


def run(program, outside: list[torch.Tensor]) -> list[torch.Tensor]:
    """Runs a program on named tensors; a dropped name stands for an input again."""
    names = [outside[place % len(outside)] for place in range(6)]
    for kind, what, first, second, target in program:
        a, b = names[first], names[second]
        match kind:
            case "make":
                names[target] = MAKE[what](a, b)
            case "view":
                names[target] = VIEW[what](a)
            case "write":
                WRITE[what](a, b)
            case "outside":
                WRITE[what](outside[target % len(outside)], b)
            case "drop":
                names[target] = outside[target % len(outside)]
        del a, b
    return names


@settings(max_examples=60, deadline=None)
@given(program=st.lists(steps, min_size=1, max_size=25), seed=st.integers(0, 99))
def test_replays_do_what_the_program_does(record, program, seed):
    source = torch.Generator().manual_seed(seed)
    static = [torch.full((SIDE, SIDE), float("nan")) for _ in range(2)]
    try:
        run(program, [torch.ones(SIDE, SIDE) for _ in range(2)])
    except RuntimeError as wrong:
        with pytest.raises(RuntimeError, match=re.escape(str(wrong))):
            record(lambda: run(program, static))
        return
    captured = record(lambda: run(program, static), arena=Arena(reuse_from=1))
    for repeat in range(3):
        values = [torch.randn(SIDE, SIDE, generator=source) for _ in range(2)]
        eager = [value.clone() for value in values]
        for ours, value in zip(static, values, strict=True):
            ours.copy_(value)
        # torch.manual_seed notes its stack for each kind of device, which takes its time.
        torch.default_generator.manual_seed(repeat)
        captured.replay()
        drawn = torch.get_rng_state()
        torch.default_generator.manual_seed(repeat)
        expected = run(program, eager)
        assert torch.equal(torch.get_rng_state(), drawn)
        for ours, theirs in zip((*captured.result, *static), (*expected, *eager), strict=True):
            assert torch.equal(ours.nan_to_num(7), theirs.nan_to_num(7))
            assert ours.stride() == theirs.stride()
