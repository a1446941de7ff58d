"""Calls of graphed callables as compiled nodes of autograd, and what they count."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .built import needs_parts
from .callables import assert_gradients_equal, leaf, mlp

pytestmark = needs_parts


class Thing:
    pass


def test_a_node_lets_go_of_what_it_holds(parts):
    thing, x = Thing(), torch.ones(2, requires_grad=True)
    gone = weakref.ref(thing)
    y = torch.ones(2)
    parts.connect(lambda context, grads, whole: (grads[0],), thing, (x,), (y,), (0,), False, True)
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(2))
    del thing
    assert gone() is not None
    del y
    assert gone() is None


def test_an_exception_in_a_backward_comes_out_as_it_is(parts):
    class Odd(Exception):
        pass

    def backward(context, grads, whole):
        raise Odd("of mine")

    x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    parts.connect(backward, None, (x,), (y,), (0,), False, True)
    with pytest.raises(Odd, match="of mine"):
        y.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("returned", [(), (1,), None, (None, None)])
def test_a_backward_that_returns_nonsense_is_refused(parts, returned):
    x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    parts.connect(lambda *_: returned, None, (x,), (y,), (0,), False, True)
    with pytest.raises((TypeError, RuntimeError)):
        y.sum().backward()


def test_whether_all_gradients_are_asked_for_is_known(parts):
    seen = []

    def backward(context, grads, whole):
        seen.append(whole)
        return (grads[0],)

    x = torch.ones(2, requires_grad=True)
    for ask in (
        lambda y: y.sum().backward(),
        lambda y: torch.autograd.grad(y.sum(), x),
        lambda y: y.sum().backward(inputs=[x]),
    ):
        y = torch.ones(2)
        parts.connect(backward, None, (x,), (y,), (0,), False, True)
        ask(y)
    assert seen == [True, False, False]


def test_outputs_require_grad_if_an_input_does(parts):
    x = torch.ones(2)
    for always in (False, True):
        y, z = torch.ones(2), torch.ones(2)
        parts.connect(lambda *_: (None,), None, (x,), (y, z), (0,), always, True)
        assert (y.requires_grad, z.requires_grad) == (always, False)
    y.sum().backward()


def test_a_node_that_is_called_by_hand_adds_nothing(device):
    module = tp.make_graphed_callables(mlp(device), (leaf(device),))
    x = leaf(device)
    y = module(x)
    z = (y * 1).sum()
    found = []
    hook = torch.ones((), device=device, requires_grad=True)
    # In the midst of another backward.
    other = (hook * 2).sum()
    other.register_hook(lambda _: found.append(y.grad_fn(torch.ones_like(y))))
    other.backward()
    assert all(one.grad is None for one in (x, *module.parameters()))
    assert sum(one is not None for one in found[0]) == 5
    with pytest.raises(tp.StaleGraph):
        z.backward()


def back_beside_another(module, x):
    """A backward of a call and of work before it; what follows the call's node, meanwhile and then.

    Only how many: who holds what follows looks on at it.
    """
    first, seen = leaf(x.device), []
    early = (first * 2).sum()
    call = module(x)  # What was made last is done first in a backward.
    # Times two, so that its gradient is memory of one layout, for whoever multiplies by it.
    node, y = call.grad_fn, early + (call * 2).sum()
    first.register_hook(lambda _: seen.append(len(node.next_functions)))
    y.backward()
    seen.append(len(node.next_functions))
    return y, seen


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("unused", [False, True], ids=["all used", "one unused"])
def test_a_node_is_as_it_was_from_the_midst_of_its_backward_on(device, unused):
    """Also for who asks at once: the engine's own threads may not be done with it by then."""
    eager = mlp(device)
    if unused:
        eager.register_parameter("alone", nn.Parameter(torch.ones(1, device=device)))
    graphed = copy.deepcopy(eager)
    x = torch.rand(6, 4, device=device)
    tp.make_graphed_callables(graphed, (x,), allow_unused_input=unused)
    for _ in range(50 if device == "cuda" else 2):
        y, seen = back_beside_another(graphed, x)
        with pytest.raises(RuntimeError):
            torch.autograd.grad(y, [graphed[0].weight], allow_unused=True)
        assert seen == [5, 5]  # The input, and the parameters that have a part in it.
        del y
        (eager(x) * 2).sum().backward()
        assert_gradients_equal([*graphed.parameters()], [*eager.parameters()])


@pytest.mark.parametrize("how", ["of the output", "of the node"])
def test_a_node_that_its_own_hook_calls_by_hand_adds_nothing(device, how):
    module = tp.make_graphed_callables(mlp(device), (torch.zeros(6, 4, device=device),))
    y = module(torch.ones(6, 4, device=device))
    node, found = y.grad_fn, []

    def hook(*given):
        if not found:
            found.append(node(torch.ones_like(y)))

    if how == "of the output":
        y.register_hook(hook)
    else:
        node.register_prehook(hook)
    with pytest.raises(tp.StaleGraph):
        y.sum().backward()  # A call is asked once.
    assert len(found[0]) == len(node.next_functions) == 5
    assert all(one.grad is None for one in module.parameters())


def test_writes_are_counted(parts):
    x, view = torch.ones(2, 2), None
    (alias,) = parts.aliases([x])
    view = x[0]
    with torch.inference_mode():
        inference = torch.ones(1)
    before = x._version
    parts.written([x, inference])
    assert (x._version, alias._version, view._version) == (before + 1,) * 3
    assert parts.versions([x, alias]) == [before + 1] * 2
    assert (alias.data_ptr(), alias.requires_grad) == (x.data_ptr(), False)


def test_gradients_that_are_buffers_are_settled(parts):
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    buffers = [torch.zeros(2) for _ in parameters]
    assert not parts.settled(parameters, buffers)
    for one, buffer in zip(parameters, buffers, strict=True):
        one.grad = buffer
    assert parts.settled(parameters, buffers)
    assert not parts.settled(parameters, buffers[::-1])
    parameters[0].register_post_accumulate_grad_hook(print)
    assert not parts.settled(parameters, buffers)
