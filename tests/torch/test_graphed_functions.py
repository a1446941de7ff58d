"""`graphed`: a function that is captured at its first call."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading

import pytest
import torch
from torch import nn

import tensorplay_torch as tp
from tests.equality import assert_all_equal

from .callables import rand


@tp.graphed
def doubled(x):
    """Doubles."""
    return x * 2


@pytest.fixture(autouse=True)
def fresh():
    yield
    doubled.release()


def test_options_are_those_of_make_graphed_callables():
    options = inspect.signature(tp.graphed).parameters
    for name, parameter in inspect.signature(tp.make_graphed_callables).parameters.items():
        if name in ("callables", "sample_args", "sample_kwargs"):
            continue
        assert options[name].kind is inspect.Parameter.KEYWORD_ONLY
        if name != "allow_unused_input":
            assert options[name].default == parameter.default


def test_the_first_call_captures(device):
    assert doubled.counts == (0, 0, 0)
    for n in range(1, 4):
        x = rand(device, 3)
        assert torch.equal(doubled(x), x * 2)
        assert doubled.counts == (n, 0, 1)
    assert doubled.__name__ == "doubled"
    assert doubled.__doc__ == "Doubles."
    assert "replayed=3" in repr(doubled)


def test_prepare_captures_ahead(device):
    assert "not captured" in repr(doubled)
    assert doubled.prepare(rand(device, 3)) is doubled
    assert doubled.counts == (0, 0, 1)
    x = rand(device, 3)
    assert torch.equal(doubled(x), x * 2)
    assert doubled.counts == (1, 0, 1)
    with pytest.raises(tp.GraphStateError, match="captured already"):
        doubled.prepare(x)


def test_a_decorator_with_options(device):
    @tp.graphed(num_warmup_iters=1, outputs="alias")
    def work(x, *, scale):
        return {"y": x * scale}

    with torch.no_grad():
        first = work(rand(device, 3), scale=2)["y"]
        x = rand(device, 3)
        second = work(x, scale=2)["y"]
        assert torch.equal(second, x * 2)
        assert first.data_ptr() == second.data_ptr()
        with pytest.raises(tp.SignatureMismatch, match=r"kwargs\['scale'\]: captured 2, got 3"):
            work(x, scale=3)
    for bad in ({"slots": 0}, {"num_warmup_iters": -1}):
        with pytest.raises(tp.ArgumentError):
            tp.graphed(**bad)
    with pytest.raises(tp.ArgumentTypeError):
        tp.graphed("a name")
    with pytest.raises(tp.GraphStateError, match="graphed already"):
        tp.graphed(work)


def test_the_signature_is_strict(device):
    x = rand(device, 4, 4)
    doubled(x)
    for other in (x[:2], x.double(), x.t(), x.clone().requires_grad_()):
        with pytest.raises(tp.SignatureMismatch, match=r"args\[0\]"):
            doubled(other)
    with pytest.raises(tp.SignatureMismatch, match=r"args\[1\]: given, not captured"):
        doubled(x, x)
    assert torch.equal(doubled(x=x), x * 2)


def test_results_are_the_caller_s_own(device):
    held = [(x, doubled(x)) for x in (rand(device, 3) for _ in range(5))]
    assert_all_equal([y for _, y in held], [x * 2 for x, _ in held])


def test_both_grad_modes_whichever_comes_first(device):
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device)
    eager = copy.deepcopy(module)
    for first in (True, False):
        graphed = tp.graphed(lambda x: module(x))
        for grad in (first, not first, first):
            with torch.set_grad_enabled(grad):
                x = rand(device, 3, 4, requires_grad=True)
                y, z = graphed(x), eager(x)
                assert torch.equal(y, z)
                assert y.requires_grad == grad
                if grad:
                    found = torch.autograd.grad(y.sum(), [x, *module.parameters()])
                    wanted = torch.autograd.grad(z.sum(), [x, *eager.parameters()])
                    assert_all_equal(found, wanted)
        assert graphed.counts == (3, 0, 2)


def test_an_operation_that_asks_for_grad_mode_gets_the_one_it_is_called_in(device):
    weight = rand(device, 3, requires_grad=True)

    @tp.graphed
    def work(x):
        return x * weight if torch.is_grad_enabled() else x - 1

    x = rand(device, 3)
    for _ in range(2):
        assert torch.equal(work(x), x * weight)
        with torch.no_grad():
            assert torch.equal(work(x), x - 1)


def test_inputs_and_parameters_need_have_no_part(device):
    module = nn.Linear(4, 4).to(device)

    @tp.graphed
    def work(x, unused):
        return module.weight.sum() * x

    x, unused = rand(device, 4, requires_grad=True), rand(device, 2, requires_grad=True)
    work(x, unused).sum().backward()
    assert unused.grad is None
    assert module.bias.grad is None
    assert module.weight.grad is not None


def test_a_module_is_left_as_it_is(device):
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device).eval()
    graphed = tp.graphed(module)
    x = rand(device, 3, 4)
    assert torch.equal(graphed(x), module(x))
    assert "forward" not in vars(module)
    assert graphed.counts.replayed == 1
    module.train()
    graphed(x)
    assert graphed.counts == (1, 1, 1)
    hooked = nn.Linear(4, 4).to(device)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(tp.CaptureError, match="forward hook"):
        tp.graphed(hooked)(x)


def test_a_method_serves_each_instance(device):
    class Model(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.scale = scale

        @tp.graphed
        def step(self, x):
            return self.linear(x) * self.scale

    one, two = Model(2).to(device), Model(3).to(device)
    x = rand(device, 3, 4)
    for model in (one, two, one):
        assert torch.equal(model.step(x), model.linear(x) * model.scale)
    assert one.step.counts == (2, 0, 1)
    assert two.step.counts == (1, 0, 1)
    assert isinstance(Model.step, type(one.step))
    other = copy.deepcopy(one)
    with torch.no_grad():
        other.linear.weight.add_(1)
    assert torch.equal(other.step(x), other.linear(x) * 2)
    assert torch.equal(one.step(x), one.linear(x) * 2)
    assert "step" not in dict(one.named_modules())


def test_release_gives_back_the_function_and_it_captures_anew(device):
    x = rand(device, 3)
    y = doubled(x)
    function = tp.release(doubled)
    assert function.__name__ == "doubled"
    assert function is doubled.__wrapped__
    assert torch.equal(y, x * 2)
    doubled.release()
    doubled.release()
    assert doubled.counts == (0, 0, 0)
    z = rand(device, 5, 2)
    assert torch.equal(doubled(z), z * 2)


def test_copies_and_pickles(device):
    x = rand(device, 3)
    doubled(x)
    other = copy.deepcopy(doubled)
    assert other.counts == (0, 0, 0)
    assert torch.equal(other(x[:2]), x[:2] * 2)
    assert torch.equal(doubled(x), x * 2)
    local = tp.graphed(torch.relu)
    again = pickle.loads(pickle.dumps(local))
    assert torch.equal(again(x), x.relu())


def test_the_first_calls_of_threads_capture_once(device):
    ready = threading.Barrier(4)
    wrong = []

    def work():
        x = rand(device, 64)
        ready.wait()  # Nobody may draw during another's capture on the CPU.
        with torch.no_grad():
            if not torch.equal(doubled(x), x * 2):
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert doubled.counts[1:] == (0, 1)


def test_a_failed_first_call_may_be_followed_by_a_good_one(device):
    class Switch:
        fail = True

    @tp.graphed
    def work(x):
        return x * x.sum().item() if Switch.fail else x * 2

    x = rand(device, 3)
    with pytest.raises((tp.OperationRefused, RuntimeError)) as caught:
        work(x)
    assert any("function work" in note for note in caught.value.__notes__)
    Switch.fail = False
    assert torch.equal(work(x), x * 2)


def test_inside_a_capture_or_another_graphed_function_it_is_part_of_that(device):
    @tp.graphed
    def outer(x):
        return doubled(x) + 1

    x = rand(device, 3)
    assert torch.equal(outer(x), x * 2 + 1)
    assert doubled.counts == (0, 0, 0)
    g = tp.CUDAGraph(device=device)
    with torch.no_grad():
        with tp.graph(g):
            y = doubled(x)
        x.fill_(7)
        g.replay()
    assert torch.equal(y, x * 2)
    assert doubled.counts == (0, 0, 0)
    assert torch.equal(doubled(x), x * 2)
