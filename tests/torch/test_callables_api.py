"""What `make_graphed_callables` and `release` take, return and refuse."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tests.equality import assert_all_equal


def sample(device, *shape, requires_grad=True):
    return torch.randn(*(shape or (4, 8)), device=device, requires_grad=requires_grad)


def test_names_and_defaults_are_those_of_torch():
    parameters = inspect.signature(tp.make_graphed_callables).parameters
    wanted = {
        "callables": inspect.Parameter.empty,
        "sample_args": inspect.Parameter.empty,
        "num_warmup_iters": 3,
        "allow_unused_input": False,
        "pool": None,
        "capture_error_mode": "global",
    }
    leading = list(parameters.values())[: len(wanted)]
    assert {one.name: one.default for one in leading} == wanted
    assert all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in leading)
    rest = list(parameters.values())[len(wanted) :]
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in rest)


def test_a_module_comes_back_as_itself(device):
    module = nn.Linear(8, 8).to(device)
    keys, names = list(module.state_dict()), [name for name, _ in module.named_parameters()]
    assert tp.make_graphed_callables(module, (sample(device),)) is module
    assert list(module.state_dict()) == keys
    assert [name for name, _ in module.named_parameters()] == names
    assert type(module) is nn.Linear


def test_a_function_comes_back_as_a_function(device):
    def double(x):
        """Doubles."""
        return x * 2

    graphed = tp.make_graphed_callables(double, (sample(device),))
    assert inspect.isfunction(graphed)
    assert graphed.__name__ == "double"
    assert graphed.__doc__ == "Doubles."
    assert graphed.__wrapped__ is double
    x = sample(device)
    assert torch.equal(graphed(x), double(x))


def test_a_tuple_comes_back_as_a_tuple_in_order(device):
    first, last = nn.Linear(8, 8).to(device), nn.Linear(8, 2).to(device)

    def between(x):
        return x.relu()

    graphed = tp.make_graphed_callables(
        (first, between, last), ((sample(device),), (sample(device),), (sample(device),))
    )
    assert isinstance(graphed, tuple)
    assert graphed[0] is first
    assert graphed[2] is last
    x = sample(device)
    expected = tp.release(graphed)[2](between(first(x)))
    assert expected.shape == (4, 2)


def test_a_tuple_of_one_stays_a_tuple(device):
    module = nn.Linear(8, 8).to(device)
    graphed = tp.make_graphed_callables((module,), ((sample(device),),))
    assert graphed == (module,)


def test_the_pool_may_be_the_caller_s(device):
    pool = tp.graph_pool_handle(device)
    module = nn.Linear(8, 8).to(device)
    tp.make_graphed_callables(module, (sample(device),), pool=pool)
    g = tp.CUDAGraph(device=device)
    x = sample(device, requires_grad=False)
    with tp.graph(g, pool):
        y = x * 2
    assert g.pool_id == pool
    g.replay()
    assert torch.equal(y, x * 2)


def test_callables_that_share_a_pool_run_one_after_the_other(device):
    """As torch's own test: three models graphed apart into one pool, gradients equal eager."""
    torch.manual_seed(3)
    pool = tp.graph_pool_handle(device)
    models = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(device) for _ in "abc"]
    x = sample(device)
    expected = []
    for model in models:
        loss = model(x).square().sum()
        expected.append(torch.autograd.grad(loss, [x, *model.parameters()]))
        tp.make_graphed_callables(model, (sample(device),), pool=pool)
    for model, wanted in zip(models, expected, strict=True):
        loss = model(x).square().sum()
        found = torch.autograd.grad(loss, [x, *model.parameters()])
        assert_all_equal(found, wanted)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_every_capture_mode_captures(device, mode):
    module = nn.Linear(8, 8).to(device)
    x = sample(device)
    expected = module(x)
    tp.make_graphed_callables(module, (x,), capture_error_mode=mode)
    assert torch.equal(module(x), expected)


def test_warm_up_calls_are_as_many_as_asked_for(device):
    calls = []
    # A method of a list is no variable of the function's, so that what it keeps is not looked at.
    note = calls.append

    def counted(x):
        note(torch.is_grad_enabled())
        return x * 2

    for warmup in (0, 1, 5):
        calls.clear()
        tp.make_graphed_callables(counted, (sample(device),), num_warmup_iters=warmup)
        assert calls == [True] * (warmup + 1)


@pytest.mark.parametrize(
    ("options", "met"),
    [
        ({"num_warmup_iters": -1}, "num_warmup_iters is -1"),
        ({"num_warmup_iters": 2.5}, "num_warmup_iters is 2.5"),
        ({"num_warmup_iters": True}, "num_warmup_iters is True"),
        ({"slots": 0}, "slots is 0"),
        ({"capture_error_mode": "strict"}, "capture_error_mode is 'strict'"),
        ({"param_grads": "sum"}, "param_grads is 'sum'"),
        ({"outputs": "view"}, "outputs is 'view'"),
        ({"on_change": "ignore"}, "on_change is 'ignore'"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options, met):
    with pytest.raises(tp.ArgumentError, match=met):
        tp.make_graphed_callables(nn.Linear(2, 2), (torch.ones(1, 2),), **options)


def test_arguments_that_do_not_fit_the_callables_are_refused():
    module = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    with pytest.raises(tp.ArgumentError, match="sample_args has 2 entries"):
        tp.make_graphed_callables((module,), ((x,), (x,)))
    with pytest.raises(tp.ArgumentError, match="sample_kwargs has 2 entries"):
        tp.make_graphed_callables((module,), ((x,),), sample_kwargs=({}, {}))
    with pytest.raises(tp.ArgumentTypeError, match="sample_args for one callable is a Tensor"):
        tp.make_graphed_callables(module, x)
    with pytest.raises(tp.ArgumentTypeError, match="sample_kwargs for one callable is a str"):
        tp.make_graphed_callables(module, (x,), sample_kwargs="x")
    with pytest.raises(tp.ArgumentTypeError, match="is a str"):
        tp.make_graphed_callables("module", (x,))
    with pytest.raises(tp.ArgumentError, match="there is none"):
        tp.make_graphed_callables((), ())
    with pytest.raises(tp.ArgumentError, match="in the tuple twice"):
        tp.make_graphed_callables((module, module), ((x,), (x,)))


def test_a_pool_of_another_kind_is_refused_and_nothing_is_lost():
    module = nn.Linear(2, 2)
    with pytest.raises(tp.PoolMismatch):
        tp.make_graphed_callables(module, (torch.ones(1, 2),), pool="a pool")
    assert "forward" not in vars(module)
    tp.make_graphed_callables(module, (torch.ones(1, 2),))


def test_what_is_graphed_is_not_graphed_again(device):
    module = nn.Linear(8, 8).to(device)
    function = tp.make_graphed_callables(lambda x: x + 1, (sample(device),))
    tp.make_graphed_callables(module, (sample(device),))
    for graphed in (module, function):
        with pytest.raises(tp.GraphStateError, match=r"graphed already.\n.*release"):
            tp.make_graphed_callables(graphed, (sample(device),))
        with pytest.raises(tp.GraphStateError, match="graphed already"):
            tp.graphed(graphed)


def test_release_gives_back_the_callable(device):
    module = nn.Linear(8, 8).to(device)

    def plain(x):
        return x * 3

    graphed = tp.make_graphed_callables((module, plain), ((sample(device),), (sample(device),)))
    x = sample(device)
    y = graphed[1](x)
    released = tp.release(graphed)
    assert released == (module, plain)
    assert "forward" not in vars(module)
    assert torch.equal(module(x), nn.functional.linear(x, module.weight, module.bias))
    assert torch.equal(y, x * 3)
    with pytest.raises(tp.GraphStateError, match="released"):
        graphed[1](x)
    with pytest.raises(tp.ArgumentTypeError, match="not graphed"):
        tp.release(module)
    with pytest.raises(tp.ArgumentTypeError, match="not graphed"):
        tp.release(plain)
    tp.make_graphed_callables(module, (x,))
    tp.release(module)


def test_a_forward_put_on_the_instance_is_graphed_and_comes_back(device):
    module = nn.Linear(8, 8).to(device)

    def forward(x):
        return x * 5

    module.forward = forward
    tp.make_graphed_callables(module, (sample(device),), allow_unused_input=True)
    x = sample(device)
    assert torch.equal(module(x), x * 5)
    tp.release(module)
    assert module.forward is forward


def test_a_pending_backward_of_a_released_callable_is_refused(device):
    module = nn.Linear(8, 8).to(device)
    tp.make_graphed_callables(module, (sample(device),))
    y = module(sample(device))
    tp.release(module)
    with pytest.raises(tp.GraphStateError, match="released"):
        y.sum().backward()


def test_graphs_go_with_the_module(device):
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(device)
    tp.make_graphed_callables(module, (sample(device),))
    module(sample(device)).sum().backward()
    with torch.no_grad():
        module(sample(device))
    gone = weakref.ref(module)
    serving = weakref.ref(module.forward)
    gc.disable()
    try:
        del module
        assert gone() is None
        assert serving() is None
    finally:
        gc.enable()


def test_a_forward_kept_longer_than_its_module_is_refused(device):
    module = nn.Linear(8, 8).to(device)
    tp.make_graphed_callables(module, (sample(device),))
    forward = module.forward
    del module
    gc.collect()
    with pytest.raises(tp.GraphStateError, match="is gone"):
        forward(sample(device))


def test_calls_are_counted(device):
    module = nn.Linear(8, 8).to(device)
    tp.make_graphed_callables(module, (sample(device),))
    counts = module.forward
    x = sample(device)
    module(x)
    module(x)
    assert counts.counts == (2, 0, 1)
    with torch.no_grad():
        module(x)
    assert counts.counts == (3, 0, 2)
    module.eval()
    module(x)
    assert counts.counts == (3, 1, 2)
    assert "replayed=3" in repr(module.forward)
    assert "Linear" in repr(module.forward)


def test_a_failed_capture_leaves_no_trace_and_the_user_s_error_on_top(device):
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.fail = True

        def forward(self, x):
            if self.fail:
                raise LookupError("mine")
            return self.inner(x)

    module = Stubborn().to(device)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    for warmup in (0, 1):
        with pytest.raises(LookupError, match="mine") as caught:
            tp.make_graphed_callables(module, (sample(device),), num_warmup_iters=warmup)
        assert any("module Stubborn" in note for note in caught.value.__notes__)
    assert "forward" not in vars(module)
    assert not tp.is_current_stream_capturing()
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name])
        assert isinstance(module.inner.weight, nn.Parameter)
    module.fail = False
    x = sample(device)
    expected = module(x)
    tp.make_graphed_callables(module, (x,))
    assert torch.equal(module(x), expected)
