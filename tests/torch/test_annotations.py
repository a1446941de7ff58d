"""Annotations of torch's work, backward passes included."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorplay_torch as tp


@pytest.fixture(autouse=True)
def cleared():
    tp.clear_annotations()
    yield
    tp.clear_annotations()


def captured(function, device, **options):
    """Annotation and phase of each node, adjacent ones that are equal once."""
    made = tp.CUDAGraph(device=device)
    with tp.graph(made, enable_annotations=True, **options):
        function()
    found = []
    for node in made.topology.nodes:
        facts = (node.attributes.get("annotation", ""), node.attributes.get("phase", ""))
        if not found or found[-1] != facts:
            found.append(facts)
    return found


def warmed_up(function, device):
    """Runs it on a side stream first, so that libraries are there."""
    if device == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function()
        torch.cuda.current_stream().wait_stream(side)
    else:
        function()


@pytest.fixture
def model(device):
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"encoder": nn.Linear(4, 4), "middle": nn.Tanh(), "decoder": nn.Linear(4, 2)}
    ).to(device)


def test_work_of_a_backward_pass_belongs_to_the_scopes_of_its_forward(device, model):
    x = torch.randn(3, 4, device=device)

    def step():
        model.zero_grad()
        with tp.annotate("encoder"):
            hidden = model["encoder"](x)
        with tp.annotate("decoder"):
            out = model["decoder"](model["middle"](hidden))
        with tp.annotate("loss"):
            loss = out.square().sum()
        with tp.annotate("backward"):
            loss.backward()

    warmed_up(step, device)
    found = captured(step, device)
    backward = [one for one in found if one[1]]
    assert backward == [("loss", "backward"), ("decoder", "backward"), ("encoder", "backward")]
    assert [one for one in found if not one[1]][:3] == [
        ("encoder", ""),
        ("decoder", ""),
        ("loss", ""),
    ]
    phases = {(one.annotation, one.phase) for one in tp.annotations()}
    assert ("encoder", "backward") in phases
    assert ("encoder", "") in phases


@pytest.mark.parametrize("track", [True, False])
def test_it_does_not_take_tracking(device, model, track):
    x = torch.randn(3, 4, device=device)

    def step():
        with tp.annotate("forward"):
            loss = model["encoder"](x).sum()
        torch.autograd.grad(loss, list(model["encoder"].parameters()))

    warmed_up(step, device)
    found = captured(step, device, track_operands=track)
    assert found[0] == ("forward", "")
    assert found[-1] == ("forward", "backward")


def test_what_no_scope_holds_belongs_to_where_backward_was_called(device):
    x = torch.randn(3, device=device)
    weight = torch.randn(3, device=device, requires_grad=True)

    def step():
        loss = (weight * x).sum()
        with tp.annotate("backward"):
            torch.autograd.grad(loss, weight)

    found = captured(step, device)
    assert found == [("", ""), ("backward", "")]


def test_accumulation_into_grad_belongs_to_where_backward_was_called(device):
    weight = torch.ones(3, device=device, requires_grad=True)
    weight.grad = torch.zeros(3, device=device)
    made = tp.CUDAGraph(device=device)
    with tp.graph(made, enable_annotations=True):
        with tp.annotate("forward"):
            loss = (weight * 2).sum()
        with tp.annotate("accumulate"):
            loss.backward()
    last = made.topology.nodes[-1]
    assert last.attributes["annotation"] == "accumulate"
    assert "phase" not in last.attributes
    made.replay()
    assert weight.grad.tolist() == [2.0] * 3


def test_one_layer_used_in_two_scopes_is_told_apart(device):
    weight = torch.ones(3, device=device, requires_grad=True)

    def step():
        with tp.annotate("first"):
            hidden = weight.sin()
        with tp.annotate("second"):
            loss = hidden.sin().sum()
        torch.autograd.grad(loss, weight)

    assert captured(step, device)[-2:] == [("second", "backward"), ("first", "backward")]


def test_a_recomputed_forward_is_work_of_its_own_scope(device, model):
    x = torch.randn(3, 4, device=device)

    def step():
        with tp.annotate("checkpointed"):
            hidden = checkpoint(
                lambda x: model["middle"](model["encoder"](x)),
                x,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        torch.autograd.grad(hidden.sum(), list(model["encoder"].parameters()))

    warmed_up(step, device)
    assert captured(step, device)[-1] == ("checkpointed", "backward")


def test_a_forward_ahead_of_the_capture_has_no_scope_in_it():
    """On the CPU: on a GPU autograd runs a backward on the stream of its forward."""
    weight = torch.ones(3, requires_grad=True)

    def forward():
        with tp.annotate("early"):
            return weight.sin().sum()

    loss = forward()

    def step():
        with tp.annotate("capture"):
            torch.autograd.grad(loss, weight)

    assert captured(step, "cpu") == [("capture", "")]


def test_a_refused_operation_of_a_backward_leaves_no_scope_open(device):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * grad.sum().item()

    x = torch.ones(3, device=device, requires_grad=True)

    def step():
        with tp.annotate("forward"):
            loss = Reads.apply(x).sum()
        loss.backward()

    with pytest.raises(tp.OperationRefused):
        captured(step, device)
    assert tp.annotations() == ()
    assert captured(lambda: x.detach() * 2, device) == [("", "")]


def test_bodies_and_backward_keep_apart(device):
    x, flag = torch.ones(3, device=device), torch.tensor(True, device=device)
    weight = torch.ones(3, device=device, requires_grad=True)
    made = tp.CUDAGraph(device=device)
    with tp.graph(made, enable_annotations=True):
        with tp.annotate("forward"):
            loss = (weight * x).sum()
        (grad,) = torch.autograd.grad(loss, weight)
        with tp.annotate("guarded"), made.if_then(flag):
            x.sub_(grad)
    conditional = next(node for node in made.topology.nodes if node.kind == "conditional")
    assert conditional.attributes["annotation"] == "guarded"
    (body,) = conditional.bodies
    assert {node.attributes["annotation"] for node in body.topology.nodes} == {"guarded"}


def test_replays_are_what_they_are_without(device, model):
    x = torch.randn(3, 4, device=device)
    results = []
    for enabled in (False, True):
        made = tp.CUDAGraph(device=device)
        warmed_up(lambda: model["encoder"](x).sum().backward(), device)
        model.zero_grad()
        with tp.graph(made, enable_annotations=enabled):
            with tp.annotate("all"):
                loss = model["encoder"](x).square().sum()
            loss.backward()
        made.replay()
        results.append(model["encoder"].weight.grad.clone())
        model.zero_grad()
        # Held, it would keep gradients of the next warm-up on the stream of this capture.
        del loss
    assert torch.equal(*results)


@pytest.mark.gpu
def test_profilers_numbers_are_there_where_the_driver_tells_them():
    from cuda.bindings import driver

    x, made = torch.ones(3, device="cuda"), tp.CUDAGraph()
    with tp.graph(made, enable_annotations=True), tp.annotate("doubled"):
        x * 2
    (node,) = tp.annotations()
    _, version = driver.cuDriverGetVersion()
    told = version >= 13010 and hasattr(driver, "cuGraphNodeGetToolsId")
    assert (node.tools_id is not None) is told
    assert "mul" in node.name.lower() or "vectorized" in node.name.lower()


@pytest.mark.gpu
def test_a_compiled_region_belongs_to_the_scope_around_it():
    x = torch.ones(64, device="cuda", requires_grad=True)
    compiled = torch.compile(lambda x: (x.sin() + 1).cos())

    def step():
        with tp.annotate("compiled"):
            out = compiled(x)
        with tp.annotate("backward"):
            torch.autograd.grad(out.sum(), x)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    found = captured(step, "cuda")
    assert found[0] == ("compiled", "")
    assert ("backward", "") in found
