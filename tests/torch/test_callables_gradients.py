"""Gradients through graphed callables: owned, accumulated, hooked and refused as eager ones are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorplay_torch as tp


def rand(device, *shape, **options):
    return torch.randn(*shape, device=device, **options)


def mlp(device):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).to(device)


def leaf(device, *shape):
    return rand(device, *(shape or (3, 4)), requires_grad=True)


GRADS = pytest.mark.parametrize("param_grads", ["autograd", "in_graph"])


@GRADS
def test_several_backwards_accumulate(device, twins, param_grads):
    """B7, torch issue 181723: its version hands out static buffers, which gives 2·g2."""
    pair = twins(mlp(device), leaf(device), param_grads=param_grads)
    for _ in range(4):
        pair.step(leaf(device))


@GRADS
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_either_way(device, twins, param_grads, set_to_none):
    pair = twins(mlp(device), leaf(device), param_grads=param_grads)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in pair.modules()]
    for n in range(6):
        pair.step(leaf(device))
        if n % 2:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)


def test_gradients_are_the_caller_s_own(device):
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),))
    kept = []
    for _ in range(3):
        x = leaf(device)
        module(x).square().sum().backward()
        kept.append([(p.grad, p.grad.clone()) for p in (x, *module.parameters())])
        module.zero_grad()
    for grads in kept:
        for grad, before in grads:
            assert torch.equal(grad, before)


def test_gradients_taken_by_autograd_grad(device, twins):
    pair = twins(mlp(device), leaf(device))
    for _ in range(3):
        x = leaf(device)
        result, expected = pair.call(x)
        other = pair.inputs[1][0][0]
        found = torch.autograd.grad(result.square().sum(), [other, *pair.graphed.parameters()])
        wanted = torch.autograd.grad(expected.square().sum(), [x, *pair.eager.parameters()])
        assert all(map(torch.equal, found, wanted))
        assert all(p.grad is None for p in pair.graphed.parameters())
    result, expected = pair.call(leaf(device))
    weight = next(iter(pair.graphed.parameters()))
    (found,) = torch.autograd.grad(result.sum(), weight)
    (wanted,) = torch.autograd.grad(expected.sum(), next(iter(pair.eager.parameters())))
    assert torch.equal(found, wanted)


def test_gradients_of_expanded_and_other_strides(device, twins):
    """`sum()` brings an expanded gradient, a transposed loss a transposed one."""
    pair = twins(mlp(device), leaf(device))
    for reduce in (
        lambda y: y.sum(),
        lambda y: y.t().contiguous().square().sum(),
        lambda y: y[0].sum(),
        lambda y: y.double().sum(),
        lambda y: torch.stack([y, y]).sum(0).T[1].sum(),
    ):
        result, expected = pair.call(leaf(device))
        reduce(result).backward()
        reduce(expected).backward()
        pair.check()


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_on_parameters_run_at_every_backward(device, when):
    module = mlp(device)
    calls, accumulated = [], []

    def register():
        module[0].weight.register_hook(lambda grad: calls.append(grad.clone()) or grad * 2)
        module[2].bias.register_post_accumulate_grad_hook(lambda p: accumulated.append(p.grad))

    x = leaf(device)
    if when == "before":
        register()
    tp.make_graphed_callables(module, (x,))
    assert calls == []
    if when == "after":
        register()
    eager = copy.deepcopy(module)
    for n in range(1, 4):
        module(x).square().sum().backward()
        assert len(calls) == len(accumulated) == n
        wanted = torch.autograd.grad(eager(x).square().sum(), eager[0].weight)[0]
        assert torch.equal(calls[-1], wanted)
        assert torch.equal(module[0].weight.grad, wanted * 2)
        module.zero_grad()


def test_hooks_on_inputs_outputs_and_retained_gradients(device):
    module = mlp(device)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (leaf(device),))
    seen = []
    results = []
    x = rand(device, 3, 4)
    for one in (module, eager):
        start = x.clone().requires_grad_()
        middle = start * 2
        middle.retain_grad()
        middle.register_hook(lambda grad: seen.append(grad.clone()))
        y = one(middle)
        y.retain_grad()
        y.square().sum().backward()
        results.append((start.grad, middle.grad, y.grad))
    assert all(map(torch.equal, *results))
    assert torch.equal(*seen)


def test_unused_inputs_are_refused_by_name_or_equal_eager(device, twins):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, unused, batch):
            return self.used(x) * batch["scale"]

    def sample():
        return leaf(device), leaf(device, 2), {"scale": leaf(device, 4), "rest": leaf(device)}

    module = Module().to(device)
    for warmup in (0, 1):
        with pytest.raises(tp.CaptureError) as caught:
            tp.make_graphed_callables(module, sample(), num_warmup_iters=warmup)
        for name in ("args[1]", "args[2]['rest']", "'spare.weight'", "'spare.bias'"):
            assert name in caught.value.met
        assert "args[0]" not in caught.value.met
        assert "used.weight" not in caught.value.met
        assert "allow_unused_input=True" in caught.value.remedy
    pair = twins(module, *sample(), allow_unused_input=True)
    for _ in range(3):
        pair.step(*sample())
    assert pair.graphed.spare.weight.grad is None


@GRADS
def test_frozen_parameters_and_inputs_without_grad(device, twins, param_grads):
    module = mlp(device)
    module[0].requires_grad_(False)
    pair = twins(module, rand(device, 3, 4), param_grads=param_grads)
    for _ in range(3):
        pair.step(rand(device, 3, 4))
    assert pair.graphed[0].weight.grad is None
    assert pair.graphed[2].weight.grad is not None


@GRADS
@pytest.mark.usefixtures("exact")
def test_shared_parameters_get_the_sum(device, twins, param_grads):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids):
            return self.out(self.embed(ids).tanh())

    ids = torch.tensor([[1, 2, 2], [0, 6, 5]], device=device)
    pair = twins(Tied().to(device), ids, param_grads=param_grads)
    for _ in range(3):
        pair.step(ids)


def test_tensors_that_a_function_closes_over_get_gradients(device):
    """torch's version differentiates its arguments alone, and says nothing of the rest."""
    weight, frozen = leaf(device, 4, 4), rand(device, 4)
    module = nn.Linear(4, 4).to(device)

    def work(x):
        return module(x @ weight) + frozen

    x = leaf(device)
    leaves = [x, weight, *module.parameters()]
    wanted = torch.autograd.grad(work(x).square().sum(), leaves)
    graphed = tp.make_graphed_callables(work, (x,))
    for _ in range(2):
        found = torch.autograd.grad(graphed(x).square().sum(), leaves)
        assert all(map(torch.equal, found, wanted))
    graphed(x).square().sum().backward()
    assert torch.equal(weight.grad, wanted[1])


def test_trainable_buffers_get_gradients(device):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            return x * self.scale

    module = Module().to(device)
    module.scale.requires_grad_()
    x = leaf(device)
    wanted = torch.autograd.grad(module(x).square().sum(), [x, module.scale])
    tp.make_graphed_callables(module, (x,))
    found = torch.autograd.grad(module(x).square().sum(), [x, module.scale])
    assert all(map(torch.equal, found, wanted))


def test_history_from_before_the_call_is_refused(device):
    weight = leaf(device, 4, 4)
    scaled = weight * 2

    def work(x):
        return x @ scaled

    with pytest.raises(tp.CaptureError, match=r"computed before the call \(by MulBackward0\)"):
        tp.make_graphed_callables(work, (leaf(device),))
    with torch.no_grad():
        tp.make_graphed_callables(work, (leaf(device),))


def test_a_hook_on_a_closed_over_tensor_is_refused(device):
    weight = leaf(device, 4, 4)
    weight.register_hook(lambda grad: grad * 2)
    with pytest.raises(tp.CaptureError, match="has a hook"):
        tp.make_graphed_callables(lambda x: x @ weight, (leaf(device),))


@GRADS
def test_a_second_backward_is_refused_unless_it_was_provided_for(device, param_grads):
    """B8: torch's version replays it over whatever is in the buffers by then."""
    module = mlp(device)
    eager = copy.deepcopy(module)
    x = leaf(device)
    tp.make_graphed_callables(module, (x,), param_grads=param_grads)
    loss = module(x).square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(tp.StaleGraph, match="ran already") as caught:
        loss.backward()
    assert "retain_graph=True" in caught.value.remedy
    tp.release(module)
    module.zero_grad()
    tp.make_graphed_callables(module, (x,), param_grads=param_grads, retain_graph=True)
    other = x.detach().clone().requires_grad_()
    x.grad = None
    loss, expected = module(x).square().sum(), eager(other).square().sum()
    for _ in range(3):
        loss.backward(retain_graph=True)
        expected.backward(retain_graph=True)
        assert torch.equal(x.grad, other.grad)
        for mine, theirs in zip(module.parameters(), eager.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)


@GRADS
def test_a_forward_that_took_the_memory_of_a_pending_backward(device, param_grads):
    """B6: torch's version gives the gradients of the later forward, silently."""
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),), param_grads=param_grads)
    first = module(leaf(device))
    second = module(leaf(device))
    with pytest.raises(tp.StaleGraph, match="a later forward") as caught:
        first.sum().backward()
    assert "slots=N" in caught.value.remedy
    assert all(p.grad is None for p in module.parameters())
    second.sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_a_forward_whose_result_is_dropped_needs_no_slot(device, twins):
    pair = twins(mlp(device), leaf(device))
    for _ in range(3):
        pair.call(leaf(device))
        pair.step(leaf(device))


def test_a_forward_without_grad_leaves_a_pending_backward_alone(device, twins):
    """A teacher's or an evaluation's forward between the two is common."""
    pair = twins(mlp(device), leaf(device))
    for _ in range(2):
        result, expected = pair.call(leaf(device))
        inputs = pair.inputs
        with torch.no_grad():
            pair.call(rand(device, 3, 4))
        result.square().sum().backward()
        expected.square().sum().backward()
        pair.inputs = inputs
        pair.check()


@pytest.mark.parametrize("slots", [2, 3])
def test_slots_are_forwards_in_flight(device, twins, slots):
    """Siamese nets and pipelines: forwards first, backwards in any order."""
    pair = twins(mlp(device), leaf(device), slots=slots)
    for order in (range(slots), reversed(range(slots))):
        flights = [(*pair.call(leaf(device)), pair.inputs) for _ in range(slots)]
        for n in order:
            result, expected, inputs = flights[n]
            result.square().sum().backward()
            expected.square().sum().backward()
            pair.inputs = inputs
            pair.check()
    flights = [pair.call(leaf(device)) for _ in range(slots + 1)]
    with pytest.raises(tp.StaleGraph, match="a later forward"):
        flights[0][0].sum().backward()
    for result, _ in flights[1:]:
        result.sum().backward()


def test_a_siamese_loss_over_two_slots(device, twins):
    pair = twins(mlp(device), leaf(device), slots=2)
    for _ in range(3):
        first = pair.call(leaf(device))
        inputs = pair.inputs
        second = pair.call(leaf(device))
        for n in range(2):
            (first[n] - second[n]).square().mean().backward()
        pair.check()
        pair.inputs = inputs
        pair.check()


def test_one_forward_one_backward_pipeline(device, twins):
    """1F1B over two slots: Megatron-LM issue 422 got NaN gradients from one."""
    pair = twins(mlp(device), leaf(device), slots=2)
    flights = [(*pair.call(leaf(device)), pair.inputs)]
    for _ in range(5):
        flights.append((*pair.call(leaf(device)), pair.inputs))
        result, expected, inputs = flights.pop(0)
        result.square().sum().backward()
        expected.square().sum().backward()
        pair.inputs = inputs
        pair.check()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x):
        shared = self.body(x).tanh()
        return {"left": self.left(shared), "right": self.right(shared).exp(), "pick": shared > 0}


@GRADS
def test_a_backward_from_some_of_the_outputs(device, twins, param_grads):
    """torch's version gives the parameters of a head that is left out zeros in place of None."""
    pair = twins(TwoHeads().to(device), leaf(device), param_grads=param_grads)
    for keys in (("left",), ("left", "right"), ("right",), ("left",), ("right", "left")):
        result, expected = pair.call(leaf(device))
        sum(result[key].square().sum() for key in keys).backward()
        sum(expected[key].square().sum() for key in keys).backward()
        pair.check()
        if keys == ("left",):
            pair.graphed.zero_grad()
            pair.eager.zero_grad()


def test_outputs_that_are_left_out_bring_no_nan(device, twins):
    """Zeros would: 0 · inf, where eager never looks."""

    class Log(nn.Module):
        def forward(self, x):
            return x * 2, x.log()

    pair = twins(Log().to(device), leaf(device))
    x = torch.zeros(3, 4, device=device, requires_grad=True)
    result, expected = pair.call(x)
    result[0].sum().backward()
    expected[0].sum().backward()
    pair.check()


def test_backwards_from_one_output_after_another(device, twins):
    pair = twins(TwoHeads().to(device), leaf(device))
    for _ in range(2):
        result, expected = pair.call(leaf(device))
        for key in ("left", "right"):
            result[key].square().sum().backward(retain_graph=True)
            expected[key].square().sum().backward(retain_graph=True)
            pair.check()


def test_double_backward_is_refused_by_name(device):
    module = mlp(device)
    x = leaf(device)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (x,))
    (found,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(eager(x).square().sum(), x)
    assert torch.equal(found, wanted)
    with pytest.raises(tp.GraphStateError, match="differentiating twice"):
        found.square().sum().backward()


def test_reentrant_checkpoint_is_refused_by_name(device):
    """B19."""

    class Module(nn.Module):
        def __init__(self, **options):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.options = options

        def forward(self, x):
            return checkpoint(lambda y: self.linear(y).tanh(), x, **self.options) * 2

    for warmup in (0, 1):
        with pytest.raises(tp.OperationRefused, match="use_reentrant=False"):
            tp.make_graphed_callables(
                Module(use_reentrant=True).to(device), (leaf(device),), num_warmup_iters=warmup
            )
    module = Module(use_reentrant=False, preserve_rng_state=False).to(device)
    x = leaf(device)
    wanted = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    tp.make_graphed_callables(module, (x,))
    for _ in range(2):
        found = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
        assert all(map(torch.equal, found, wanted))


def test_custom_functions_inside(device, twins):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x * 3

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return Square.apply(self.linear(x))

    pair = twins(Module().to(device), leaf(device))
    for _ in range(3):
        pair.step(leaf(device))


def test_sparse_gradients_are_refused(device):
    module = nn.Embedding(5, 3, sparse=True).to(device)
    with pytest.raises(tp.CaptureError, match="sparse") as caught:
        tp.make_graphed_callables(module, (torch.tensor([1, 2], device=device),))
    assert "sparse=False" in caught.value.remedy or "dense" in caught.value.remedy


# Tuples of callables: one pool, forwards in order, backwards in reverse.


def chain(device, n=3, width=4):
    return [
        nn.Sequential(nn.Linear(width, 300), nn.Tanh(), nn.Linear(300, width)).to(device)
        for _ in range(n)
    ]


def test_a_chain_of_callables_trains_as_eager(device):
    eager = chain(device)
    graphed = tp.make_graphed_callables(
        tuple(copy.deepcopy(eager)), tuple((leaf(device),) for _ in eager)
    )
    for _ in range(3):
        x, other = leaf(device), None
        other = x.detach().clone().requires_grad_()
        y, z = x, other
        for one, two in zip(eager, graphed, strict=True):
            y, z = one(y), two(z)
        assert torch.equal(y, z)
        y.square().sum().backward()
        z.square().sum().backward()
        assert torch.equal(x.grad, other.grad)
        for one, two in zip(eager, graphed, strict=True):
            for p, q in zip(one.parameters(), two.parameters(), strict=True):
                assert torch.equal(p.grad, q.grad)


def test_callables_apart_in_a_tuple_in_every_order(device):
    """Backwards out of order would read memory that others have used: right, or refused."""
    eager = chain(device, 2)
    graphed = tp.make_graphed_callables(
        tuple(copy.deepcopy(eager)), tuple((leaf(device),) for _ in eager)
    )
    for forwards in ((0, 1), (1, 0)):
        for backwards in ((0, 1), (1, 0)):
            x = [leaf(device), leaf(device)]
            losses = {n: graphed[n](x[n]).square().sum() for n in forwards}
            refused = []
            for n in backwards:
                eager[n].zero_grad()
                graphed[n].zero_grad()
                wanted = torch.autograd.grad(
                    eager[n](x[n]).square().sum(), [x[n], *eager[n].parameters()]
                )
                try:
                    found = torch.autograd.grad(losses[n], [x[n], *graphed[n].parameters()])
                except tp.StaleGraph as error:
                    refused.append(error.met)
                    continue
                assert all(map(torch.equal, found, wanted))
            in_order = (forwards, backwards) == ((0, 1), (1, 0))
            assert len(refused) == (0 if in_order else 1)
            assert all("before it in the tuple" in met for met in refused)


def test_another_call_s_graphs_in_the_same_pool(device):
    """They may have been given the memory of activations that a backward still needs."""
    pool = tp.graph_pool_handle(device)
    first, second = chain(device, 2)
    for module in (first, second):
        tp.make_graphed_callables(module, (leaf(device),), pool=pool)
    x = leaf(device)
    pending = first(x)
    second(leaf(device)).sum().backward()
    with pytest.raises(tp.StaleGraph, match="another make_graphed_callables call"):
        pending.sum().backward()
    first(x).sum().backward()
    pending = second(x)
    first(x)
    with pytest.raises(tp.StaleGraph, match="another make_graphed_callables call"):
        pending.sum().backward()


def test_callables_of_separate_calls_do_not_disturb_each_other(device):
    first, second = chain(device, 2)
    copies = copy.deepcopy((first, second))
    for module in (first, second):
        tp.make_graphed_callables(module, (leaf(device),))
    x = leaf(device)
    ours = first(x), second(x)
    theirs = copies[0](x), copies[1](x)
    for n in (0, 1):
        found = torch.autograd.grad(ours[n].square().sum(), x)
        wanted = torch.autograd.grad(theirs[n].square().sum(), x)
        assert torch.equal(found[0], wanted[0])


# Gradients added inside the graph.


def test_in_graph_gradients_follow_what_the_user_does_to_grad(device, twins):
    pair = twins(mlp(device), leaf(device), param_grads="in_graph")
    pair.step(leaf(device))
    pair.step(leaf(device))
    for module in pair.modules():
        module.zero_grad(set_to_none=True)
    pair.step(leaf(device))
    for module in pair.modules():
        module[0].weight.grad = None
        module[0].bias.grad = torch.ones_like(module[0].bias)
        module[2].weight.grad.mul_(3)
        module[2].bias.grad = module[2].bias.grad / 2
    theirs = pair.graphed[0].bias.grad
    for _ in range(2):
        pair.step(leaf(device))
    assert pair.graphed[0].bias.grad is theirs
    for module in pair.modules():
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
    pair.step(leaf(device))


def test_in_graph_gradients_keep_the_sign_of_zero(device, twins):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.weight

    pair = twins(Module().to(device), rand(device, 3), param_grads="in_graph")
    x = torch.tensor([-0.0, 0.0, 1.0], device=device)
    result, expected = pair.call(x)
    ones = torch.ones(3, device=device)
    result.backward(ones)
    expected.backward(ones)
    pair.check()


def test_in_graph_callables_that_share_a_parameter_add_to_one_gradient(device):
    module = nn.Linear(4, 4).to(device)
    eager = copy.deepcopy(module)
    one = tp.make_graphed_callables(lambda x: module(x), (leaf(device),), param_grads="in_graph")
    two = tp.make_graphed_callables(
        lambda x: module(x).tanh(), (leaf(device),), param_grads="in_graph"
    )
    for _ in range(2):
        x = leaf(device)
        one(x).square().sum().backward()
        two(x).square().sum().backward()
        eager(x).square().sum().backward()
        eager(x).tanh().square().sum().backward()
        assert torch.equal(module.weight.grad, eager.weight.grad)
        assert torch.equal(module.bias.grad, eager.bias.grad)


def test_in_graph_leaves_grad_alone_until_the_first_backward(device):
    module = mlp(device)
    module[0].weight.grad = torch.ones_like(module[0].weight)
    tp.make_graphed_callables(module, (leaf(device),), param_grads="in_graph")
    assert torch.equal(module[0].weight.grad, torch.ones_like(module[0].weight))
    assert module[2].weight.grad is None


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_in_graph_says_by_name_what_it_refuses(device):
    module = mlp(device)
    x = leaf(device)
    tp.make_graphed_callables(module, (x,), param_grads="in_graph")
    with pytest.raises(tp.GraphStateError, match="only chosen gradients"):
        torch.autograd.grad(module(x).sum(), x)
    with pytest.raises(tp.GraphStateError, match="only chosen gradients"):
        module(x).sum().backward(inputs=[x])
    assert all(p.grad is None for p in module.parameters())
    hook = module[2].bias.register_hook(lambda grad: grad)
    with pytest.raises(tp.GraphStateError, match=r"parameter '2.bias' has a hook"):
        module(x).sum().backward()
    hook.remove()
    hook = module[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(tp.GraphStateError, match=r"parameter '0.weight' has a hook"):
        module(x).sum().backward()
    hook.remove()
    module(x).sum().backward()
    x.grad = None
    module(x).sum().backward(create_graph=True)
    with pytest.raises(tp.GraphStateError, match="differentiating twice"):
        x.grad.sum().backward()


@GRADS
def test_parameters_changed_between_forward_and_backward(device, param_grads):
    """Eager refuses it; a replay would read the new values, as if they had been there before."""
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),), param_grads=param_grads)
    loss = module(leaf(device)).square().sum()
    with torch.no_grad():
        module[2].weight.add_(1)
    with pytest.raises(tp.StaleGraph, match=r"since the forward: parameter '2\.weight'"):
        loss.backward()
    module(leaf(device)).square().sum().backward()


def test_a_buffer_that_a_later_forward_moves_before_the_backward(device):
    """Eager counts the write and refuses the backward, so a replay must not go ahead."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            with torch.no_grad():
                self.scale.lerp_(x.abs().mean(0), 0.5)
            return x * self.scale

    module = Scaled().to(device)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (leaf(device),), slots=2)
    for one, error in ((module, tp.StaleGraph), (eager, RuntimeError)):
        first = one(leaf(device))
        one(leaf(device)).sum().backward()
        with pytest.raises(error, match=r"scale|modified by an inplace operation"):
            first.sum().backward()
        first = one(leaf(device))
        with torch.no_grad():
            one(rand(device, 3, 4))
        with pytest.raises(error, match=r"scale|modified by an inplace operation"):
            first.sum().backward()


def test_a_parameter_that_the_backward_does_not_read_may_change_before_it(device, twins):
    """Nobody saves a bias; and of the first layer's weight only its own gradient would have use."""
    pair = twins(nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device), rand(device, 3, 4))
    result, expected = pair.call(rand(device, 3, 4))
    with torch.no_grad():
        for module in pair.modules():
            for parameter in module.parameters():
                parameter.add_(1)
    result.square().sum().backward()
    expected.square().sum().backward()
    pair.check()


def test_a_frozen_parameter_changed_before_the_backward(device):
    module = nn.Linear(4, 4).to(device).requires_grad_(False)
    eager = copy.deepcopy(module)
    tp.make_graphed_callables(module, (leaf(device),))
    for one, error in ((module, tp.StaleGraph), (eager, RuntimeError)):
        loss = one(leaf(device)).sum()
        with torch.no_grad():
            one.weight.add_(1)
        with pytest.raises(error):
            loss.backward()


def test_the_oldest_forward_gives_way_when_slots_run_out(device):
    module = mlp(device)
    tp.make_graphed_callables(module, (leaf(device),), slots=2)
    module(leaf(device)).sum().backward()
    flights = [module(leaf(device)) for _ in range(3)]
    with pytest.raises(tp.StaleGraph, match="a later forward"):
        flights[0].sum().backward()
    for result in flights[1:]:
        result.sum().backward()
