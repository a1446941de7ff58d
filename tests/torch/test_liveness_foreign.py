"""Inputs of kernels that torch does not see: found by address, then kept or watched."""

from __future__ import annotations

import gc

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_torch.cuda.foreign import tensors_at

from .stale_graphs import stale


def test_tensors_are_found_by_addresses_in_their_memory():
    x, y = torch.ones(8), torch.ones(8)
    view = x[2:4]
    start = x.untyped_storage().data_ptr()
    words = {start + 9, 1, 2**63, y.data_ptr() + y.untyped_storage().nbytes()}
    found = list(tensors_at(words, torch.device("cpu")))
    assert {one.untyped_storage().data_ptr() for one in found} == {start}
    assert len(found) == 1
    assert view.shape == (2,)
    assert list(tensors_at((), torch.device("cpu"))) == []
    assert list(tensors_at({start}, torch.device("meta"))) == []


class Loud(torch.Tensor):
    """Its attributes must not be asked for through its own code."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called")


def test_looking_for_tensors_runs_no_code_of_theirs():
    loud = torch.ones(4).as_subclass(Loud)
    with torch._C.DisableTorchFunctionSubclass():
        start = loud.data_ptr()
    found = list(tensors_at({start}, torch.device("cpu")))
    assert len(found) == 1
    del loud


PTX = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry add_into(.param .u64 target, .param .u64 source)
{
    .reg .u64 %rd<3>;
    .reg .f32 %f<3>;
    ld.param.u64 %rd1, [target];
    ld.param.u64 %rd2, [source];
    ld.global.f32 %f1, [%rd1];
    ld.global.f32 %f2, [%rd2];
    add.f32 %f1, %f1, %f2;
    st.global.f32 [%rd1], %f1;
    ret;
}
"""


@pytest.fixture
def add_into():
    """A kernel that torch knows nothing of: ``add_into(target, source)`` adds one float."""
    from tensorplay_core import select

    driver = select("cuda").driver
    function = driver.module(PTX).function("add_into")

    def launch(target, source):
        stream = torch.cuda.current_stream().cuda_stream
        driver.launch(function, 1, 1, [target.data_ptr(), source.data_ptr()], stream=stream)

    return launch


@pytest.mark.gpu
def test_inputs_of_a_kernel_past_torch_are_kept(add_into):
    out, x = torch.zeros(1, device="cuda"), torch.full((1,), 2.0, device="cuda")
    made = tp.CUDAGraph()
    with tp.graph(made):
        out.mul_(1)
        add_into(out, x)
        out.mul_(1)
    before = torch.cuda.memory_allocated()
    del x
    assert torch.cuda.memory_allocated() == before
    torch.full((1,), 100.0, device="cuda")
    made.replay()
    assert out.item() == 2.0
    made.close()
    assert torch.cuda.memory_allocated() < before


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["first", "between", "last", "alone"])
def test_inputs_of_a_kernel_past_torch_are_watched(add_into, place):
    out, x = torch.zeros(1, device="cuda"), torch.full((1,), 2.0, device="cuda")
    made = tp.CUDAGraph()
    with tp.graph(made, check_input_liveness=True):
        if place not in ("first", "alone"):
            out.mul_(1)
        add_into(out, x)
        if place not in ("last", "alone"):
            out.mul_(1)
    made.replay()
    assert out.item() == 2.0
    del x
    said = stale(made)
    assert "1 of its inputs" in said
    assert "past torch's operations" in said
    assert f"went at {__file__}:" in said


@pytest.mark.gpu
def test_inputs_of_a_kernel_in_a_body_are_watched(add_into):
    out, x = torch.zeros(1, device="cuda"), torch.full((1,), 2.0, device="cuda")
    flag, made = torch.tensor(True, device="cuda"), tp.CUDAGraph()
    with tp.graph(made, check_input_liveness=True) as g, g.if_then(flag):
        add_into(out, x)
    made.replay()
    assert out.item() == 2.0
    del x
    stale(made)


@pytest.mark.gpu
def test_memory_that_a_kernel_past_torch_shares_with_the_graph_is_not_watched(add_into):
    x, made = torch.full((1,), 2.0, device="cuda"), tp.CUDAGraph()
    with tp.graph(made, check_input_liveness=True):
        mine = torch.zeros(1, device="cuda")
        add_into(mine, x)
        out = mine * 3
    del mine
    gc.collect()
    made.replay()
    assert out.item() == 6.0


@pytest.mark.gpu
def test_inputs_of_a_compiled_region_are_kept():
    x, weight = torch.ones(64, device="cuda"), torch.full((64,), 2.0, device="cuda")
    compiled = torch.compile(lambda x, weight: (x * weight).sin() + weight)
    for _ in range(3):
        compiled(x, weight)
    torch.cuda.synchronize()
    expected, made = compiled(x, weight), tp.CUDAGraph()
    with tp.graph(made):
        out = compiled(x, weight)
    before = torch.cuda.memory_allocated()
    del weight
    assert torch.cuda.memory_allocated() == before
    made.replay()
    assert torch.equal(out, expected)


@pytest.mark.gpu
def test_results_of_a_compiled_region_may_die():
    x = torch.ones(64, device="cuda")
    compiled = torch.compile(lambda x: x.sin() + 1)
    for _ in range(3):
        compiled(x)
    torch.cuda.synchronize()
    made = tp.CUDAGraph()
    with tp.graph(made, check_input_liveness=True):
        out = (compiled(x) * 2).sum()
    gc.collect()
    made.replay()
    assert out.item() == pytest.approx(2 * 64 * (torch.ones(()).sin().item() + 1), rel=1e-4)
