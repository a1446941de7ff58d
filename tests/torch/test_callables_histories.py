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

import tensorplay_torch as tp

from .drawn_modules import Model, arguments, compare, differentiable, models, ways, weighted
from .twins import random_state, set_random_state, tensors

pytestmark = pytest.mark.filterwarnings("ignore:.*deterministic")

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
        device = torch.device(self.device)
        before = random_state(device)
        expected = call(self.eager)
        after = random_state(device)
        set_random_state(before)
        result = call(self.graphed)
        for one, other in zip(random_state(device), after, strict=True):
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
