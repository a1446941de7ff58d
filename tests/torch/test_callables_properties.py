"""Graphed modules do what eager ones do, bit for bit, whatever is called in whatever order.

Hypothesis draws a module, how to graph it, and a history of calls. The eager twin runs along: every
result, gradient, buffer and random state is equal, or the call is one that must be refused by name.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import nn

import tensorplay_torch as tp

pytestmark = pytest.mark.filterwarnings("ignore:.*deterministic")

WIDTH = 4
BATCH = 3


class Tied(nn.Module):
    """Two uses of one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x).tanh())


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3, padding=1)

    def forward(self, x):
        return self.conv(x.unsqueeze(1)).sum(1)


class Views(nn.Module):
    """Slices, transposes and a write through a view."""

    def forward(self, x):
        y = x.t().contiguous()
        y[0].mul_(0.5)
        y[1:].add_(y[:-1].clone())
        return (y.t() + x.reshape(-1)[: x.numel()].view(x.shape)).contiguous()


class Average(nn.Module):
    """A buffer moved in place at each forward, as exponential averages are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.25)
        return x - self.mean


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x) if self.training else x


LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "conv": Conv,
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "dropout": lambda: nn.Dropout(0.5),
    "relu in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "gelu": nn.GELU,
    "tied": Tied,
    "views": Views,
    "average": Average,
    "noise": Noise,
    "frozen": lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(False),
}


class Model(nn.Module):
    """Layers in a row, between an entry and an exit.

    Args:
        layers: Names in LAYERS.
        entry: "tensor", "tokens", or "pair": what the inputs are.
        exit: "tensor", "two" or "dict": what the outputs are.
    """

    def __init__(self, layers, entry, exit):
        super().__init__()
        self.entry, self.exit = entry, exit
        self.embed = nn.Embedding(5, WIDTH) if entry == "tokens" else None
        self.layers = nn.ModuleList(LAYERS[name]() for name in layers)
        self.head = nn.Linear(WIDTH, 2) if exit != "tensor" else None

    def forward(self, *inputs):
        if self.entry == "tokens":
            x = self.embed(inputs[0])
        elif self.entry == "pair":
            x = inputs[0] * inputs[1]["scale"]
        else:
            x = inputs[0] * 2
        for layer in self.layers:
            x = layer(x)
        if self.exit == "two":
            return x, self.head(x)
        if self.exit == "dict":
            return {"head": self.head(x), "body": x * 2, "best": x.argmax(1), "none": None}
        return x


def arguments(entry, requires_grad, seed, device):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, WIDTH, generator=generator).to(device)
    if entry == "tokens":
        return (torch.randint(5, (BATCH,), generator=generator).to(device),)
    x.requires_grad_(requires_grad)
    if entry == "pair":
        scale = torch.randn(WIDTH, generator=generator).to(device)
        return x, {"scale": scale.requires_grad_(requires_grad)}
    return (x,)


models = st.fixed_dictionaries(
    {
        "layers": st.lists(st.sampled_from(sorted(LAYERS)), max_size=4),
        "entry": st.sampled_from(["tensor", "tokens", "pair"]),
        "exit": st.sampled_from(["tensor", "two", "dict"]),
        "requires_grad": st.booleans(),
    }
)
ways = st.fixed_dictionaries(
    {
        "slots": st.integers(1, 3),
        "param_grads": st.sampled_from(["autograd", "in_graph"]),
        "retain_graph": st.booleans(),
        "num_warmup_iters": st.integers(1, 2),
    }
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("forward"), st.integers(0, 99)),
        st.tuples(st.just("forward"), st.integers(0, 99)),
        st.tuples(st.just("backward"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("backward"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("no grad"), st.integers(0, 99)),
        st.tuples(st.just("drop"), st.integers(0, 3)),
        st.tuples(st.just("mode"), st.booleans()),
        st.tuples(st.just("seed"), st.integers(0, 9)),
        st.tuples(st.just("zero"), st.booleans()),
        st.tuples(st.just("step")),
        st.tuples(st.just("load"), st.integers(0, 9)),
    ),
    min_size=4,
    max_size=16,
)


class History:
    """Both twins, and which of the graphed one's forwards wait for their backwards."""

    def __init__(self, device, model, way):
        torch.manual_seed(11)
        self.device, self.entry = device, model["entry"]
        self.requires_grad = model["requires_grad"]
        self.way = way
        self.eager = Model(model["layers"], model["entry"], model["exit"]).to(device)
        self.graphed = copy.deepcopy(self.eager)
        tp.make_graphed_callables(
            self.graphed,
            arguments(self.entry, self.requires_grad, 0, device),
            allow_unused_input=True,
            **way,
        )
        self.check()
        self.flights: list[dict[str, Any]] = []

    def both(self, call):
        """Calls each twin from one random state; states come out equal."""
        before = states(self.device)
        expected = call(self.eager)
        after = states(self.device)
        restore(before)
        result = call(self.graphed)
        for one, other in zip(states(self.device), after, strict=True):
            assert torch.equal(one, other)
        return expected, result

    def forward(self, seed):
        inputs = []

        def call(module):
            inputs.append(arguments(self.entry, self.requires_grad, seed, self.device))
            return module(*inputs[-1])

        graphs = self.graphed.training
        expected, result = self.both(call)
        compare(expected, result)
        if not differentiable(expected):
            return
        waiting = [one for one in self.flights if one["graphs"] and one["state"] == "waiting"]
        if graphs and len(waiting) >= self.way["slots"]:
            waiting[0]["state"] = "superseded"
        self.flights.append(
            {
                "expected": expected,
                "result": result,
                "inputs": inputs,
                "graphs": graphs,
                "state": "waiting",
                "outputs": len(differentiable(expected)),
            }
        )

    def backward(self, which, mask):
        if not self.flights:
            self.forward(which)
        if not self.flights:  # Nothing in it requires grad.
            return
        flight = self.flights[which % len(self.flights)]
        chosen = [n for n in range(flight["outputs"]) if mask & (1 << n)] or [0]
        losses = []
        for side in ("expected", "result"):
            outputs = differentiable(flight[side])
            losses.append(sum(weighted(outputs[n % len(outputs)]) for n in chosen))
        failures = []
        for loss in losses:
            try:
                loss.backward(retain_graph=True)
            except RuntimeError as error:
                failures.append(error)
            else:
                failures.append(None)
        retained = self.way["retain_graph"] or flight["outputs"] > 1
        refused = failures[0] is not None or (
            flight["graphs"]
            and (flight["state"] == "superseded" or (flight["state"] == "spent" and not retained))
        )
        if isinstance(failures[1], tp.StaleGraph) and len(chosen) < flight["outputs"]:
            # Eager would refuse the change of a parameter for the outputs that are left out.
            refused = refused or "changed in place" in failures[1].met
        event(f"backward: {flight['state']}, {'refused' if refused else 'equal'}")
        if refused:
            assert isinstance(failures[1], tp.StaleGraph if flight["graphs"] else RuntimeError)
            # What either made of it before it failed is not to be compared from here on.
            for p, q in zip(self.eager.parameters(), self.graphed.parameters(), strict=True):
                p.grad = None if q.grad is None else q.grad.clone()
            self.drop(which)
            return
        assert failures == [None, None]
        if flight["state"] == "waiting":
            flight["state"] = "spent" if not retained else "waiting"
        self.check()
        mine, theirs = (list(tensors(inputs)) for inputs in flight["inputs"])
        for x, y in zip(mine, theirs, strict=True):
            compare(x.grad, y.grad)

    def no_grad(self, seed):
        def call(module):
            with torch.no_grad():
                return module(*arguments(self.entry, self.requires_grad, seed, self.device))

        compare(*self.both(call))

    def drop(self, which):
        if self.flights:
            del self.flights[which % len(self.flights)]

    def mode(self, training):
        self.eager.train(training)
        self.graphed.train(training)

    def seed(self, seed):
        torch.manual_seed(seed)

    def zero(self, set_to_none):
        self.eager.zero_grad(set_to_none)
        self.graphed.zero_grad(set_to_none)

    def step(self):
        """A step of plain gradient descent, in place as optimizers do it."""
        with torch.no_grad():
            for module in (self.eager, self.graphed):
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=0.01)

    def load(self, seed):
        generator = torch.Generator().manual_seed(seed)
        state = {
            name: torch.randn(value.shape, generator=generator).abs().to(value.dtype)
            for name, value in self.eager.state_dict().items()
        }
        self.eager.load_state_dict(state)
        self.graphed.load_state_dict(state)

    def check(self):
        for one, other in zip(
            self.eager.named_parameters(), self.graphed.named_parameters(), strict=True
        ):
            compare(one[1].grad, other[1].grad)
        compare(dict(self.eager.state_dict()), dict(self.graphed.state_dict()))


@pytest.mark.usefixtures("exact")
@settings(
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ]
)
@given(model=models, way=ways, history=actions)
def test_any_history_is_as_eager_s(device, model, way, history):
    twins = History(device, model, way)
    for name, *values in history:
        event(name)
        getattr(twins, name.replace(" ", "_"))(*values)
        twins.check()
    counts = twins.graphed.forward.counts
    assert counts.captured >= 1


@pytest.mark.usefixtures("exact")
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    parts=st.lists(
        st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=2), min_size=2, max_size=3
    ),
    way=ways,
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4),
)
def test_any_chain_of_callables_is_as_eager_s(device, parts, way, seeds):
    torch.manual_seed(5)
    eager = [Model(layers, "tensor", "tensor").to(device) for layers in parts]
    graphed = copy.deepcopy(eager)
    samples = tuple(arguments("tensor", True, 0, device) for _ in parts)
    tp.make_graphed_callables(tuple(graphed), samples, allow_unused_input=True, **way)
    for seed in seeds:
        results = []
        torch.manual_seed(seed)
        for chain in (eager, graphed):
            torch.manual_seed(seed)
            (x,) = arguments("tensor", True, seed, device)
            y = x
            for module in chain:
                y = module(y)
            weighted(y).backward()
            results.append((y, x.grad))
        compare(*results)
        for one, other in zip(eager, graphed, strict=True):
            for p, q in zip(one.parameters(), other.parameters(), strict=True):
                compare(p.grad, q.grad)
            compare(dict(one.state_dict()), dict(other.state_dict()))


def states(device):
    found = [torch.get_rng_state()]
    if device == "cuda":
        found.append(torch.cuda.get_rng_state())
    return found


def restore(found):
    torch.set_rng_state(found[0])
    if len(found) > 1:
        torch.cuda.set_rng_state(found[1])


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)


def differentiable(value):
    return [one for one in tensors(value) if one.requires_grad]


def weighted(tensor):
    weights = torch.linspace(-1, 2, tensor.numel(), device=tensor.device)
    return (tensor * weights.view(tensor.shape)).sum()


def compare(expected, result):
    """Equal bit for bit; NaN is equal to itself."""
    assert type(expected) is type(result) or isinstance(expected, nn.Parameter)
    if isinstance(expected, torch.Tensor):
        assert expected.dtype == result.dtype
        assert expected.requires_grad == result.requires_grad or not torch.is_grad_enabled()
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict):
        assert expected.keys() == result.keys()
        for key in expected:
            compare(expected[key], result[key])
    elif isinstance(expected, list | tuple):
        for one, other in zip(expected, result, strict=True):
            compare(one, other)
    else:
        assert expected == result
