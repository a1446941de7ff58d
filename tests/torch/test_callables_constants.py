"""Arguments that are held fixed, and arguments that are refused by name."""

from __future__ import annotations

import enum
import math

import numpy
import pytest
import torch
from torch import nn

import tensorplay_torch as tp

from .callables import rand


class Kind(enum.Enum):
    SUM = 1
    MEAN = 2


@pytest.mark.parametrize(
    ("captured", "other"),
    [
        (1, True),
        (1, 2),
        (1, 1.0),
        (0.0, -0.0),
        (2.0, math.nan),
        ("sum", "mean"),
        (None, 0),
        (Kind.SUM, Kind.MEAN),
        (torch.float32, torch.float64),
        (b"x", b"y"),
        ((1, 2), (1, 3)),
        (slice(0, 2), slice(0, 3)),
        (torch.relu, torch.tanh),
        (numpy.float32(1), numpy.float64(1)),
    ],
)
def test_constants_are_compared_at_every_call(device, captured, other):
    """A number that is frozen in a graph would be used for every other number."""

    def work(x, *, setting):
        return x + 1

    x = rand(device, 3)
    graphed = tp.make_graphed_callables(work, (x,), sample_kwargs={"setting": captured})
    graphed(x, setting=captured)
    with pytest.raises(tp.SignatureMismatch, match=r"kwargs\['setting'\].*: captured"):
        graphed(x, setting=other)
    graphed(x, setting=captured)


def test_equal_constants_are_the_same(device):
    def work(x, y, z):
        return x + 1

    x = rand(device, 3)
    graphed = tp.make_graphed_callables(work, (x, math.nan, "a long string"))
    graphed(x, float("nan"), " ".join(["a", "long", "string"]))


@pytest.mark.parametrize(
    "value", [object(), numpy.zeros(2), {1, 2}, bytearray(b"x"), nn.Linear(2, 2), slice(0, [1])]
)
def test_what_may_change_unnoticed_is_refused(value):
    with pytest.raises(tp.ArgumentError, match=r"args\[1\] is an? .*may change"):
        tp.make_graphed_callables(lambda x, y: x, (torch.ones(2), value))


@pytest.mark.parametrize(
    ("value", "met"),
    [
        (lambda: torch.ones(1, 4).expand(3, 4), "is expanded"),
        (lambda: torch.eye(3).to_sparse(), "is sparse_coo"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "conjugation"),
        (lambda: torch.ones(2, device="meta"), "is on meta"),
    ],
)
def test_tensors_that_no_buffer_can_stand_for_are_refused(value, met):
    with pytest.raises(tp.ArgumentError, match=met):
        tp.make_graphed_callables(lambda x: x, (value(),))


def test_a_tensor_subclass_is_refused():
    class Mine(torch.Tensor):
        pass

    with pytest.raises(tp.ArgumentError, match=r"Mine, a tensor that dispatches by itself"):
        tp.make_graphed_callables(lambda x: x, (torch.ones(2).as_subclass(Mine),))


def test_views_and_slices_are_inputs_like_others(device):
    def work(x, y):
        return x.sum(0) + y

    whole = rand(device, 6, 8)
    graphed = tp.make_graphed_callables(work, (whole[:, ::2], whole[0, 1::2]))
    other = rand(device, 6, 8)
    assert torch.equal(graphed(other[:, ::2], other[3, 1::2]), work(other[:, ::2], other[3, 1::2]))


@pytest.mark.parametrize("where", ["first", "inner"])
def test_a_change_of_an_input_in_place_is_refused(device, where):
    """A replay would change the graph's buffer, and the caller's tensor would stay as it was."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU(inplace=True)

        def forward(self, batch):
            self.act(batch["x"] if where == "first" else batch["x"][1:])
            return batch["x"] * 2

    module = Module().to(device)
    with pytest.raises(tp.OperationRefused, match=r"args\[0\]\['x'\] in place") as caught:
        tp.make_graphed_callables(module, ({"x": rand(device, 3, 4)},))
    assert "clone()" in caught.value.remedy
    with pytest.raises(tp.OperationRefused, match="input that requires grad in place"):
        tp.make_graphed_callables(module, ({"x": rand(device, 3, 4, requires_grad=True)},))
    with pytest.raises(tp.OperationRefused, match="in place"):
        tp.make_graphed_callables(module, ({"x": rand(device, 3, 4)},), num_warmup_iters=0)


@pytest.mark.gpu
def test_callables_are_captured_where_their_tensors_are():
    """B1 and torch issue 87894: the current device is no sign of where the work is."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    module = nn.Linear(4, 4).to("cuda:1")
    x = torch.randn(2, 4, device="cuda:1")
    expected = module(x)
    with torch.cuda.device(0):
        tp.make_graphed_callables(module, (x,))
        assert torch.equal(module(x), expected)
        assert torch.cuda.current_device() == 0


@pytest.mark.gpu
def test_tensors_of_two_devices_are_refused():
    """A value that is read on another device would be frozen."""
    with pytest.raises(tp.CaptureError, match=r"args\[0\] is on cuda:0 and args\[1\] on cpu"):
        tp.make_graphed_callables(
            lambda x, y: x * y, (torch.ones(2, device="cuda"), torch.tensor(2.0))
        )
    module = nn.BatchNorm1d(4).cuda()
    module.num_batches_tracked = module.num_batches_tracked.cpu()
    with pytest.raises(tp.CaptureError, match="num_batches_tracked on cpu"):
        tp.make_graphed_callables(module, (torch.ones(2, 4, device="cuda"),))
