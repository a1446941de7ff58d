"""Conditionals of the torch driver on the CPU, with what only tensors can get wrong."""

from __future__ import annotations

import pytest
import torch

import tensorplay_torch as tp


def graph():
    return tp.CUDAGraph(device="cpu")


@pytest.mark.parametrize(
    "predicate",
    [
        True,
        1,
        None,
        torch.tensor([True, False]),
        torch.tensor([], dtype=torch.bool),
        torch.tensor(1),
        torch.tensor(1.0),
        torch.empty((), dtype=torch.bool, device="meta"),
    ],
    ids=repr,
)
def test_a_predicate_is_one_bool_on_the_device(predicate):
    x = torch.zeros(1)
    with pytest.raises(tp.PredicateError), tp.graph(graph()) as g:
        x.add_(1)
        with g.if_then(predicate):
            x.add_(1)


@pytest.mark.parametrize(
    "predicate",
    [True, None, torch.tensor([True] * 2), torch.tensor(1.0), torch.empty((), device="meta")],
    ids=repr,
)
def test_outside_a_capture_a_predicate_is_a_tensor_of_one_element_too(predicate):
    with pytest.raises(tp.PredicateError):
        tp.cond(predicate, lambda: 1, lambda: 2)


@pytest.mark.parametrize("index", [torch.tensor(True), torch.tensor(1.0), torch.tensor([1, 2]), 1])
def test_an_index_is_one_integer(index):
    with pytest.raises(tp.PredicateError), tp.graph(graph()) as g, g.switch(index, 2):
        pass


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_predicate_may_have_any_shape_of_one_element(shape):
    flag, total, g = torch.ones(shape, dtype=torch.bool), torch.zeros(()), graph()
    with tp.graph(g), g.if_then(flag):
        total.add_(1)
    g.replay()
    flag.zero_()
    g.replay()
    assert total.item() == 1


def test_a_predicate_that_nobody_keeps_is_kept():
    x, total, g = torch.tensor(1.0), torch.zeros(()), graph()
    with tp.graph(g), g.if_then(x > 0):
        total.add_(1)
    junk = [torch.zeros((), dtype=torch.bool) for _ in range(64)]
    for value, expected in ((1.0, 1.0), (-1.0, 1.0), (2.0, 2.0)):
        x.fill_(value)
        g.replay()
        assert total.item() == expected
    assert len(junk) == 64


def test_random_numbers_in_a_body_are_refused_by_name():
    flag, x = torch.tensor(True), torch.zeros(4)
    with pytest.raises(tp.OperationRefused) as caught, tp.graph(graph()) as g, g.if_then(flag):
        torch.nn.functional.dropout(x)
    assert "dropout" in caught.value.operation or "bernoulli" in caught.value.operation
    assert "test_driver_conditional.py" in caught.value.where


def test_attention_without_dropout_draws_nothing_and_is_taken():
    flag, g = torch.tensor(True), graph()
    q, out = torch.randn(1, 1, 4, 8), torch.zeros(1, 1, 4, 8)
    with tp.graph(g), g.if_then(flag):
        out.copy_(torch.nn.functional.scaled_dot_product_attention(q, q, q))
    g.replay()
    assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(q, q, q))


def test_a_while_body_that_cannot_end_is_refused():
    flag, x = torch.tensor(True), torch.zeros(())
    with (
        pytest.raises(tp.ConditionalError, match="predicate"),
        tp.graph(graph()) as g,
        g.while_loop(flag),
    ):
        x.add_(1)


def test_a_view_of_the_predicate_counts_as_the_predicate():
    flags, x, g = torch.ones(3, dtype=torch.bool), torch.zeros(()), graph()
    with tp.graph(g), g.while_loop(flags[1]):
        x.add_(1)
        flags[:2].copy_((x < 3).expand(2))
    g.replay()
    assert x.item() == 3


def test_a_bounded_loop_may_leave_its_predicate_alone():
    flag, x, g = torch.tensor(True), torch.zeros(()), graph()
    with tp.graph(g), g.while_loop(flag, max_steps=5):
        x.add_(1)
    g.replay()
    assert x.item() == 5


def test_gradients_do_not_leave_a_conditional_silently():
    w, x = torch.ones(2, requires_grad=True), torch.ones(2)
    flag = torch.tensor(True)
    with pytest.raises(tp.OperationRefused, match="gradients cannot follow"), tp.graph(graph()):
        tp.cond(flag, lambda: w * x, lambda: w + x)
    g = graph()
    with tp.graph(g), torch.no_grad():
        y = tp.cond(flag, lambda: w * 3, lambda: w + 1)
    for value, expected in ((True, 3.0), (False, 2.0)):
        flag.fill_(value)
        g.replay()
        assert y.tolist() == [expected] * 2


def test_low_precision_copies_do_not_leave_a_body():
    """Autocast keeps the cast of a weight; one made in a body exists only where that ran."""
    torch.manual_seed(0)
    w, x, flag = torch.randn(4, 4, requires_grad=True), torch.randn(2, 4), torch.tensor(False)
    first, second, g = torch.zeros(2, 4), torch.zeros(2, 4), graph()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        with tp.graph(g):
            with g.if_then(flag):
                first.copy_(x @ w)
            second.copy_(x @ w)
        eager = (x @ w).float()
    g.replay()
    assert torch.equal(second, eager)
    assert first.eq(0).all()


def test_reading_a_predicate_inside_a_capture_is_refused():
    from tensorplay_core import select

    flag, x = torch.tensor(True), torch.zeros(())
    with pytest.raises(tp.CaptureError), tp.graph(graph()):
        x.add_(1)
        select("torch").conditional_read(flag)
    assert select("torch").conditional_read(flag) == 1
    assert select("torch").conditional_read(torch.tensor([7])) == 7


def test_a_whole_training_loop_runs_inside_a_node_as_it_does_eagerly():
    def world():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, capturable=True)
        x, y = torch.randn(16, 4), torch.randn(16, 1)

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step()  # Optimizer state exists from here on.
        return model, step

    eager, eager_step = world()
    count, loss = 0, torch.tensor(2.0)
    while loss > 0.9 and count < 25:
        loss = eager_step()
        count += 1

    model, step = world()
    steps, last, more, g = torch.zeros(()), torch.zeros(()), torch.tensor(True), graph()
    with tp.graph(g):
        steps.zero_()
        more.fill_(True)
        with g.while_loop(more):
            last.copy_(step())
            steps.add_(1)
            more.copy_((last > 0.9) & (steps < 25))
    g.replay()
    assert steps.item() == count > 2
    assert torch.equal(last, loss)
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours, theirs)
