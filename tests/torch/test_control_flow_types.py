"""What a capture would cast, or run on memory that holds no value yet, is refused by name."""

from __future__ import annotations

import pytest
import torch

import tensorplay_torch as tp


def test_branches_of_another_dtype_are_refused() -> None:
    flag, x = torch.tensor(True), torch.ones(2)
    with (
        pytest.raises(tp.SignatureMismatch) as caught,
        tp.graph(tp.CUDAGraph(device="cpu")),
    ):
        tp.cond(flag, lambda a: a.int(), lambda a: a / 2, x)
    assert any("dtype" in line for line in caught.value.differences)


@pytest.mark.parametrize("name", ["apply_", "map_", "map2_"])
def test_functions_of_python_over_elements_are_refused(name: str) -> None:
    x, others = torch.ones(2), {"apply_": 0, "map_": 1, "map2_": 2}[name]
    with (
        pytest.raises(tp.OperationRefused, match=name),
        tp.graph(tp.CUDAGraph(device="cpu")),
    ):
        getattr(x, name)(*[torch.ones(2)] * others, lambda *values: 5.0)
    assert x.tolist() == [1.0, 1.0]


KINDS = {
    "an operand": lambda t: t,
    "a view of one": lambda t: t[1:],
    "several": lambda t: (t, t * 1, t.view(3, 1)),
    "no operand": lambda t: t + 1,
}


@pytest.mark.parametrize("name", KINDS)
def test_what_cond_returns_is_no_operand(name: str, device: str) -> None:
    function = KINDS[name]
    flag, x = torch.tensor(True, device=device), torch.ones(3, device=device)
    results = tp.cond(flag, function, function, x)
    for one in results if isinstance(results, tuple) else [results]:
        one.add_(5)
    assert x.tolist() == [1.0] * 3


def test_gradients_flow_from_an_operand_that_cond_returns() -> None:
    x = torch.ones(3, requires_grad=True)
    tp.cond(torch.tensor(True), lambda t: t, lambda t: t * 2, x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 3


def test_gradients_flow_from_what_a_branch_had_at_hand() -> None:
    w = torch.ones(3, requires_grad=True)
    first, second = tp.cond(torch.tensor(True), lambda: (w, w), lambda: (w * 2, w))
    assert first is not second
    with torch.no_grad():
        first.add_(1)
    assert w.tolist() == second.tolist() == [1.0] * 3
    (first * 2 + second).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [3.0] * 3


@pytest.mark.parametrize("captured", [False, True], ids=["eagerly", "in a capture"])
def test_views_among_the_results_are_results_of_their_own(captured: bool) -> None:
    x, flag = torch.ones(3), torch.tensor(True)

    def branch(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        made = t * 2
        return made, None, made[1:]

    def work() -> tuple[torch.Tensor, ...]:
        whole, nothing, part = tp.cond(flag, branch, branch, x)
        assert nothing is None
        part.add_(5)
        return whole, part

    if captured:
        made = tp.CUDAGraph(device="cpu")
        with tp.graph(made):
            whole, part = work()
        made.replay()
    else:
        whole, part = work()
    assert whole.tolist() == [2.0] * 3
    assert part.tolist() == [7.0] * 2


SOLID = {
    "a generator": lambda: (one for one in ()),
    "a number": lambda: 3,
    "a string": lambda: "a",
    "a dict": lambda: {"a": torch.ones(2)},
}


@pytest.mark.parametrize("captured", [False, True], ids=["eagerly", "in a capture"])
@pytest.mark.parametrize("name", SOLID)
def test_what_is_no_tensor_is_refused_with_its_place(name: str, captured: bool) -> None:
    x = torch.ones(2)

    def refused(work) -> None:
        with pytest.raises(tp.ArgumentTypeError, match=r"\[0\]"):
            if captured:
                with tp.graph(tp.CUDAGraph(device="cpu")):
                    work()
            else:
                work()

    refused(lambda: tp.cond(x.sum() > 0, lambda t: SOLID[name](), lambda t: SOLID[name](), x))
    refused(lambda: tp.while_loop(lambda t: x.sum() < 0, lambda t: t, SOLID[name]()))
    refused(lambda: tp.while_loop(lambda t: x.sum() < 0, lambda t: t, [None]))


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_tensors_that_are_no_plain_memory_are_not_carried(kind: str) -> None:
    one = torch.ones(2).to_sparse() if kind == "sparse" else torch.ones(2, device="meta")
    with pytest.raises(tp.ArgumentTypeError, match=kind):
        tp.while_loop(lambda t: torch.tensor(False), lambda t: t, one)


@pytest.mark.parametrize("given", [3, None, "generator", object(), [torch.ones(2)]])
def test_a_generator_is_one_of_torchs(given: object) -> None:
    made = tp.CUDAGraph(device="cpu")
    with pytest.raises(tp.ArgumentTypeError, match="generator"):
        made.register_generator_state(given)
    with tp.graph(made):
        torch.rand(2)
