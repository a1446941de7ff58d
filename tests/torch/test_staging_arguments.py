"""Staged launches: buffers and inputs that are none are refused by name; many cost little."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensorplay_torch as tp

NO_TENSORS = {
    "None": lambda: None,
    "a generator": lambda: (one for one in ()),
    "a number": lambda: 3,
    "a string": lambda: "a",
    "a dict": lambda: {"a": torch.ones(2)},
}
NOT_PLAIN = {
    "sparse": lambda device: torch.ones(2, device=device).to_sparse(),
    "meta": lambda device: torch.ones(2, device="meta"),
    "zeros without memory": lambda device: torch._efficientzerotensor((2,), device=device),
}


class Doubling:
    """A graph that doubles two numbers."""

    def __init__(self, device: str) -> None:
        self.x = torch.ones(2, device=device)
        self.made = tp.CUDAGraph(device=device)
        with tp.graph(self.made):
            self.y = self.x * 2

    def works(self) -> None:
        (result,) = self.made.stage([self.x], results=[self.y])([torch.full_like(self.x, 3.0)])
        assert result.tolist() == [6.0, 6.0]


@pytest.fixture
def doubling(device: str) -> Doubling:
    return Doubling(device)


@pytest.mark.parametrize("name", NO_TENSORS)
def test_buffers_that_are_no_tensors(doubling: Doubling, name: str) -> None:
    made, x, one = doubling.made, doubling.x, NO_TENSORS[name]()
    for refused in (
        lambda: made.stage([one]),
        lambda: made.stage([x], results=[one]),
        lambda: made.stage_and_launch([one], [x]),
    ):
        with pytest.raises(tp.ArgumentTypeError, match=r"\[0\].* it is an? "):
            refused()
    doubling.works()


@pytest.mark.parametrize("given", [None, 3, torch.ones(2, 2)], ids=["None", "a number", "a tensor"])
def test_buffers_that_come_in_no_sequence(doubling: Doubling, given: Any) -> None:
    made, x = doubling.made, doubling.x
    for refused in (
        lambda: made.stage(given),
        lambda: made.stage([x], results=given),
        lambda: made.stage_and_launch(given, [x]),
        lambda: (made.stage_and_launch([x], [x]), made.stage_and_launch(given, [x])),
    ):
        with pytest.raises(tp.ArgumentTypeError):
            refused()
    doubling.works()


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_buffers_of_no_plain_memory(doubling: Doubling, kind: str, device: str) -> None:
    one = NOT_PLAIN[kind](device)
    for refused in (
        lambda: doubling.made.stage([one]),
        lambda: doubling.made.stage([doubling.x], results=[one]),
        lambda: doubling.made.stage_and_launch([one], [doubling.x]),
    ):
        with pytest.raises(tp.ArgumentTypeError, match=kind):
            refused()
    doubling.works()


@pytest.mark.parametrize("name", NO_TENSORS)
def test_inputs_that_are_no_tensors(doubling: Doubling, name: str) -> None:
    made, one = doubling.made, NO_TENSORS[name]
    plan = made.stage([doubling.x])
    with pytest.raises(tp.SignatureMismatch, match="captured a"):
        plan([one()])
    with pytest.raises(tp.SignatureMismatch):
        plan(one())
    with pytest.raises(tp.SignatureMismatch):
        made.stage_and_launch([doubling.x], [one()])
    assert doubling.x.tolist() == [1.0, 1.0]
    doubling.works()


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_inputs_of_no_plain_memory(doubling: Doubling, kind: str, device: str) -> None:
    one = NOT_PLAIN[kind](device)
    with pytest.raises(tp.SignatureMismatch):
        doubling.made.stage([doubling.x])([one])
    with pytest.raises(tp.ArgumentTypeError, match=kind):
        doubling.made.stage_and_launch([doubling.x], [one])
    assert doubling.x.tolist() == [1.0, 1.0]
    doubling.works()


def test_inputs_may_come_in_any_collection(doubling: Doubling) -> None:
    fresh = {"x": torch.full_like(doubling.x, 4.0)}
    doubling.made.stage_and_launch({"x": doubling.x}.values(), fresh.values())
    assert doubling.y.tolist() == [8.0, 8.0]


def test_an_unhashable_pool_is_refused_by_name() -> None:
    with pytest.raises(tp.PoolMismatch), tp.graph(tp.CUDAGraph(device="cpu"), pool={"a": 1}):
        torch.ones(2)


def test_pairs_of_buffers_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """With inputs apart from all buffers, what is looked at grows with their number only."""
    from tensorplay_torch import staging

    compared = []
    monkeypatch.setattr(staging, "overlap", lambda *both: compared.append(both))
    xs = [torch.ones(3) for _ in range(200)]
    made = tp.CUDAGraph(device="cpu")
    with tp.graph(made):
        total = torch.stack(xs).sum(0)
    plan = made.stage(xs, results=[total])
    (result,) = plan([torch.full((3,), float(place)) for place in range(200)])
    assert result.tolist() == [float(sum(range(200)))] * 3
    assert not compared


def test_inputs_in_the_buffers_own_memory_are_taken_as_they_were() -> None:
    """Rotations, shifts and halves of buffers, which a copy before would overwrite."""
    whole = torch.arange(12.0)
    parts = list(whole.split(3))
    alone = torch.zeros(3)
    made = tp.CUDAGraph(device="cpu")
    with tp.graph(made):
        out = torch.cat([*parts, alone]) * 1
    plan = made.stage([*parts, alone], results=[out])
    for chosen in (
        lambda: [parts[1], parts[2], parts[3], parts[0], alone],
        lambda: [whole[1:4], whole[4:7], whole[7:10], whole[:3], whole[9:]],
        lambda: [alone, parts[0], parts[1], parts[2], parts[3]],
        lambda: [*parts, parts[0]],
    ):
        whole.copy_(torch.arange(12.0))
        alone.fill_(-1)
        expected = torch.cat(chosen())
        (result,) = plan(chosen())
        assert torch.equal(result, expected)


NESTED = """
import warnings, torch, tensorplay_torch as tp
warnings.filterwarnings("ignore")
x = torch.zeros(2, 3)
n = torch.nested.nested_tensor([x[0], x[0, :2]])
g, f, m = tp.CUDAGraph(device="cpu"), tp.graphed(lambda x: x * 2), torch.nn.Linear(3, 3)
with tp.graph(g):
    y = x * 2
plan = g.stage([x])
plan([x + 1])
f(x)
tp.make_graphed_callables(m, (x,))
ways = {
    "plan": lambda: g.stage([x])([n]),
    "plan called before": lambda: plan([n]),
    "launch": lambda: g.stage_and_launch([x], [n]),
    "callable": lambda: f(n),
    "module": lambda: m(n),
}
for name, way in ways.items():
    try:
        way()
    except tp.SignatureMismatch:
        print(name, "refused", flush=True)
"""


def test_a_nested_input_is_refused_and_the_process_lives(forked: Any) -> None:
    """torch's guards throw where nothing catches; in a process of its own for that."""
    done = forked("-c", NESTED)
    assert done.returncode == 0, done.stderr
    names = ("plan", "plan called before", "launch", "callable", "module")
    assert done.stdout.splitlines() == [f"{name} refused" for name in names]


@pytest.mark.parametrize("form", ["plan", "stage_and_launch"])
@pytest.mark.parametrize("how", ["resize_", "storage"])
def test_inputs_are_set_apart_from_buffers_that_moved(form: str, how: str) -> None:
    """The graph on the CPU goes where a storage is; what it overlaps has to be looked for there."""
    a, b = torch.zeros(4), torch.zeros(4)
    with tp.graph(tp.CUDAGraph(device="cpu")) as g:
        y = a + b * 100
    plan = g.stage([a, b], [y])
    g.stage_and_launch([a, b], [torch.ones(4), torch.ones(4)])
    if how == "resize_":
        a.resize_(100_000)
        a.resize_(4)
    else:
        a.untyped_storage().resize_(1 << 20)
    for _ in range(2):
        a.fill_(5.0)
        if form == "plan":
            assert plan([torch.ones(4), a])[0].tolist() == [501.0] * 4
        else:
            g.stage_and_launch([a, b], [torch.ones(4), a])
            assert y.tolist() == [501.0] * 4


@pytest.mark.parametrize("how", ["data", "set_"])
def test_a_static_buffer_with_other_memory_is_copied_from(device: str, how: str) -> None:
    a = torch.zeros(4, device=device)
    with tp.graph(tp.CUDAGraph(device=device)) as g:
        y = a + 1
    plan, other = g.stage([a], [y]), torch.full((4,), 7.0, device=device)
    plan([torch.ones(4, device=device)])
    g.stage_and_launch([a], [torch.ones(4, device=device)])
    if how == "data":
        a.data = other
    else:
        a.set_(other)
    assert plan([a])[0].tolist() == [8.0] * 4
    other.fill_(9.0)
    g.stage_and_launch([a], [a])
    assert y.tolist() == [10.0] * 4


def test_a_tensor_by_itself_is_no_list_of_inputs(device: str) -> None:
    a = torch.zeros(4, device=device)
    with tp.graph(tp.CUDAGraph(device=device)) as g:
        y = a + 1
    with pytest.raises(tp.ArgumentTypeError):
        g.stage_and_launch([a], torch.ones(2, 4, device=device))
    with pytest.raises(tp.SignatureMismatch):
        g.stage([a], [y])(torch.ones(2, 4, device=device))


def test_an_expanded_tensor_is_no_static_buffer(device: str) -> None:
    a = torch.zeros(1, device=device).expand(4)
    with tp.graph(tp.CUDAGraph(device=device)) as g:
        a + 1
    for stage in (lambda: g.stage([a]), lambda: g.stage_and_launch([a], [torch.ones(4)])):
        with pytest.raises(tp.ArgumentTypeError, match="share memory"):
            stage()
