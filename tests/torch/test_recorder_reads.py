"""Reading values on the host in a capture on the CPU: refused by name, at the user's line."""

from __future__ import annotations

import array
import contextlib
import copy
import io
import pickle
import sys
from collections import deque
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

import tensorplay_torch as tp
from tensorplay_core import OperationRefused
from tensorplay_core.errors import CaptureInvalidated
from tests.equality import assert_all_equal

from .refusals import refusal, x


def here() -> str:
    """The line below the caller's."""
    return f"{__file__}:{sys._getframe(1).f_lineno + 1}"


HOST_READS = {
    "Tensor.item": lambda t: t[0, 0].item(),
    "Tensor.tolist": lambda t: t.tolist(),
    "Tensor.numpy": lambda t: t.numpy(),
    "numpy.asarray(tensor)": lambda t: np.asarray(t),
    "Tensor.__dlpack__": lambda t: np.from_dlpack(t),
    "Tensor.data_ptr": lambda t: t.data_ptr(),
    "bool(tensor)": lambda t: 1 if t.sum() > 0 else 0,
    "int(tensor)": lambda t: int(t[0, 0]),
    "float(tensor)": lambda t: float(t[0, 0]),
    "complex(tensor)": lambda t: complex(t[0, 0]),
    "operator.index(tensor)": lambda t: range(t[0, 0].long()),
    "element in tensor": lambda t: 1.0 in t,
    "repr(tensor)": lambda t: repr(t),
    "format(tensor)": lambda t: f"{t.sum()}",
    "copy.deepcopy(tensor)": lambda t: copy.deepcopy(t),
    "making a tensor from numbers in tensors": lambda t: torch.tensor([t[0, 0], 1.0]),
    "pickling a tensor": lambda t: pickle.dumps(t),
    "Tensor.tensor_split by a tensor": lambda t: t.tensor_split(torch.tensor([1, 2])),
    "aten.equal": lambda t: torch.equal(t, t * 1),
    "aten._local_scalar_dense": lambda t: torch.zeros(5).expand(t[0, 0].long().abs(), 5),
    "aten.allclose": lambda t: torch.allclose(t, t),
}


@pytest.mark.parametrize("name", HOST_READS)
@pytest.mark.parametrize("born", [False, True], ids=["from outside", "born inside"])
def test_reads_on_the_host(record, name, born):
    read = HOST_READS[name]
    t = x()
    assert refusal(record, lambda: read(t * 1 if born else t)).operation == name
    read(t)  # Outside a capture it is nobody's business.


PICKLES = {
    "torch.save": lambda t: torch.save({"weights": [t]}, io.BytesIO()),
    "pickle of a parameter": lambda t: pickle.dumps(torch.nn.Parameter(t)),
    "Python's own pickler": lambda t: pickle._dumps(t),
    "a state dict": lambda t: torch.save(torch.nn.Linear(2, 2).state_dict(), io.BytesIO()),
    "parts": lambda t: t.__reduce_ex__(2),
    "another process": lambda t: ForkingPickler.dumps(t),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles(record, name):
    assert refusal(record, lambda: PICKLES[name](x() * 1)).operation == "pickling a tensor"
    PICKLES[name](x())


NUMBERS = {
    "new": lambda t: t.new([t[0, 0], 1.0]),
    "a deque": lambda t: torch.tensor(deque([t[0, 0], 1.0])),
    "nested": lambda t: torch.as_tensor([(t[0, 0],), (1.0,)]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_tensors_made_from_tensors_in_sequences(record, name):
    assert refusal(record, NUMBERS[name], x()).operation.startswith("making a tensor")


def test_what_shares_memory_is_fine(record):
    """Copies of modules and tensors that share memory, and copies that are work."""
    t, linear = x(), torch.nn.Linear(4, 4)
    born = torch.ones(4)

    def body():
        doubled = t * 2
        shared = copy.copy(doubled)
        doubled += 1
        assert t.untyped_storage().nbytes() == 64
        return (
            shared,
            copy.copy(torch.nn.Parameter(born)) * 3,
            copy.copy(linear).eval()(t),
            copy.deepcopy(linear)(t),
            t.new([1.0, 2.0]),
            torch.tensor(array.array("f", [1.0, 2.0])),
        )

    captured = record(body)
    for value in (1.0, -2.0):
        t.fill_(value)
        with torch.no_grad():
            linear.weight.fill_(value)
        captured.replay()
        assert_all_equal(captured.result, body())


def test_the_line_is_the_users(record):
    t = x()

    def body():
        nonlocal line
        line = here()
        return (t * 2).sum().item()

    line = ""
    assert refusal(record, body).where == line


def test_host_reads_in_a_backward_pass_are_seen(record):
    class Peeks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, grad):
            return torch.from_numpy(grad.numpy() * 2)

    t = x().requires_grad_()
    assert refusal(record, lambda: Peeks.apply(t).sum().backward()).operation == "Tensor.numpy"
    one = refusal(record, lambda: torch.autograd.grad(Peeks.apply(t).sum(), t))
    assert one.operation == "Tensor.numpy"
    hooked = x().requires_grad_()
    hooked.register_hook(lambda grad: grad.tolist())
    assert refusal(record, lambda: (hooked * 2).sum().backward()).operation == "Tensor.tolist"
    assert hooked.grad is None


def swallowing(t):
    try:
        scale = t[0, 0].item()
    except Exception:
        scale = 1.0
    return t * scale


def swallowing_an_operation(t):
    with contextlib.suppress(Exception):
        t = t * t.nonzero().sum()
    return t * 2


def looking(t):
    return (t * 2, hasattr(t, "numpy"), getattr(t, "__cuda_array_interface__", None))[0]


@pytest.mark.parametrize("function", [swallowing, swallowing_an_operation])
def test_a_refusal_that_is_swallowed_ends_the_capture_all_the_same(record, function):
    """Eager code would take the other path; and on a GPU the capture would be broken."""
    with pytest.raises(CaptureInvalidated, match="did not leave the block") as broken:
        record(function, x())
    assert isinstance(broken.value.__cause__, OperationRefused)
    assert f"{__file__}:" in str(broken.value)
    record(looking, x()).replay()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_refusal_inside_torchscript_is_one_outside():
    @torch.jit.script
    def scripted(t: torch.Tensor):
        return t + float(t[0, 0])

    t, made = x(), tp.CUDAGraph(device="cpu")
    scripted(t)
    with pytest.raises(OperationRefused, match="value on the host") as refused, tp.graph(made):
        scripted(t)
    assert refused.value.where.startswith(f"{__file__}:")
    assert "TorchScript" in str(refused.value.__cause__)
