"""Numbers that captured work holds by value can be found in its nodes and changed in place."""

from __future__ import annotations

import struct

import pytest
import torch

import tensorplay_torch as tt
from tensorplay_core.errors import DriverCallFailed
from tensorplay_torch.numbered import numbered
from tests.equality import assert_all_equal

OLD, NEW = 2.7182818, 0.57721566


def changed(data: bytes, old: float, new: float) -> bytes:
    """``data`` with a number replaced, as a double or as a float."""
    for packing in ("<d", "<f"):
        before = struct.pack(packing, old)
        if before in data:
            assert data.count(before) == 1
            return data.replace(before, struct.pack(packing, new))
    raise AssertionError(f"{old} is nowhere in {data.hex()}")


def captured(device, work, state):
    """A graph of ``work()``, and its nodes."""
    work()
    g = tt.CUDAGraph(device=device)
    with tt.graph(g, capture_error_mode="thread_local"), numbered(g) as nodes:
        work()
    for one in state:
        one.fill_(1.0)
    return g, nodes


def test_a_number_is_changed_in_place(device):
    x = torch.ones(8, device=device)
    g, nodes = captured(device, lambda: x.mul_(OLD), [x])
    (node,) = nodes
    assert node.readable
    assert "mul" in node.name.lower()
    g.replay()
    assert torch.equal(x, torch.ones_like(x) * OLD)
    node.rewrite(g, changed(node.data, OLD, NEW))
    for expected in (OLD * NEW, OLD * NEW * NEW):
        g.replay()
        assert torch.allclose(x, torch.full_like(x, expected))
    assert changed(node.data, NEW, OLD)
    node.rewrite(g, changed(node.data, NEW, OLD))
    x.fill_(1.0)
    g.replay()
    assert torch.equal(x, torch.ones_like(x) * OLD)


@pytest.mark.parametrize("launches", [0, 1, 3], ids=lambda n: f"after {n} launches")
def test_staged_launches_take_the_new_number(device, launches):
    x, out = torch.ones(8, device=device), torch.ones(8, device=device)

    def work():
        torch.mul(x, OLD, out=out)

    g, (node,) = captured(device, work, [x, out])
    plan = g.stage([x], [out])
    fresh = torch.arange(8.0, device=device)
    for _ in range(launches):
        (result,) = plan([fresh])
        assert torch.equal(result, fresh * OLD)
    for number in (NEW, OLD, NEW):
        before = OLD if number == NEW else NEW
        node.rewrite(g, changed(node.data, before, number))
        for _ in range(2):
            (result,) = plan([fresh])
            assert torch.equal(result, fresh * number)
        g.replay()
        assert torch.equal(out, fresh * number)


def test_numbers_of_many_tensors_at_once(device):
    xs = [torch.ones(n, device=device) for n in (3, 5, 700)]
    ys = [torch.full_like(one, 2.0) for one in xs]
    g, nodes = captured(device, lambda: torch._foreach_add_(xs, ys, alpha=OLD), xs)
    assert nodes
    for node in nodes:
        node.rewrite(g, changed(node.data, OLD, NEW))
    g.replay()
    expected = [torch.ones_like(one) for one in xs]
    torch._foreach_add_(expected, ys, alpha=NEW)
    assert_all_equal(xs, expected)


def test_results_that_are_copied_take_new_numbers_too(device):
    """On the CPU some operations can only return new tensors, which a recording copies."""
    xs = [torch.ones(n, device=device) for n in (3, 5)]
    totals = [torch.ones_like(one) for one in xs]

    def work():
        for total, one in zip(totals, torch._foreach_add(xs, xs, alpha=OLD), strict=True):
            total.copy_(one)

    g, nodes = captured(device, work, [*xs, *totals])
    for node in nodes:
        if node.data and any(struct.pack(p, OLD) in node.data for p in ("<d", "<f")):
            node.rewrite(g, changed(node.data, OLD, NEW))
    g.replay()
    expected = torch._foreach_add(xs, xs, alpha=NEW)
    assert_all_equal(totals, expected)


def test_only_what_is_captured_in_the_block_is_seen(device):
    x = torch.ones(8, device=device)
    x.mul_(1.0)
    g = tt.CUDAGraph(device=device)
    with tt.graph(g, capture_error_mode="thread_local"):
        x.mul_(1.25)
        with numbered(g) as nodes:
            x.mul_(OLD)
        x.mul_(1.5)
    assert len(nodes) == 1
    changed(nodes[0].data, OLD, NEW)


@pytest.mark.parametrize("kind", ["if", "while"])
def test_inside_the_body_of_a_conditional(device, kind):
    """Either the driver changes such nodes, and then it is right, or it says that it does not."""
    x = torch.ones(8, device=device)
    yes = torch.ones((), dtype=torch.bool, device=device)
    x.mul_(OLD)
    x.fill_(1.0)
    g = tt.CUDAGraph(device=device)
    with tt.graph(g, capture_error_mode="thread_local"):
        body = g.if_then(yes) if kind == "if" else g.while_loop(yes, max_steps=2)
        with body, numbered(g) as nodes:
            x.mul_(OLD)
    node = next(node for node in nodes if "mul" in node.name.lower())
    power = 1 if kind == "if" else 2
    try:
        node.rewrite(g, changed(node.data, OLD, NEW))
    except DriverCallFailed as error:
        assert device == "cuda"
        print(f"inside the body of {kind} nothing is changed in place: {error}")
        expected = OLD**power
    else:
        expected = NEW**power
    g.replay()
    assert torch.allclose(x, torch.full_like(x, expected))


def test_other_bytes_than_captured_are_refused(device):
    x = torch.ones(8, device=device)
    g, (node,) = captured(device, lambda: x.mul_(OLD), [x])
    with pytest.raises((ValueError, struct.error)):
        node.rewrite(g, node.data + b"\0")
    g.replay()
    assert torch.equal(x, torch.ones_like(x) * OLD)
