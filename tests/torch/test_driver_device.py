"""The torch driver as a device: which devices it takes, tensors as arrays, signatures, facts."""

from __future__ import annotations

import re

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_core import select
from tensorplay_torch import _private
from tensorplay_torch.resources.signatures import compile_check, differences

CPU = torch.device("cpu")


def stable(value):
    """A name of ``value`` that is the same in every process: not of where it lies."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@pytest.fixture(scope="module")
def runtime():
    return select("torch")


@pytest.mark.parametrize("device", ["cpu", CPU, "cpu:0", torch.device("cpu", 0)], ids=stable)
def test_the_cpu_is_one_device_however_it_is_named(runtime, device):
    assert runtime.resolve_device(device) == CPU


def test_no_device_is_the_cpu_where_there_is_no_gpu(runtime, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runtime.resolve_device(None) == CPU


def test_no_device_is_the_current_gpu_where_there_is_one(runtime, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    gpu = torch.device("cuda", 2)
    for named in (None, 2, "cuda", "cuda:2", gpu, torch.device("cuda")):
        assert runtime.resolve_device(named) == gpu
    assert runtime.resolve_device("cpu") == CPU
    with pytest.raises(tp.ArgumentError, match="3 CUDA devices"):
        runtime.resolve_device(3)


@pytest.mark.parametrize("device", [256, 4096, "cuda:256", "cuda:300"])
def test_an_ordinal_that_torch_would_take_for_another_is_refused(runtime, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 64)
    with pytest.raises(tp.ArgumentError, match="up to 127"):
        runtime.resolve_device(device)


@pytest.mark.parametrize("device", ["mps", "xpu", "meta", torch.device("mps")], ids=stable)
def test_other_accelerators_are_refused_by_name(runtime, device):
    with pytest.raises(tp.ArgumentError, match="the CPU path only"):
        runtime.resolve_device(device)


@pytest.mark.parametrize("device", [True, 1.5, object(), b"cpu"], ids=stable)
def test_what_is_no_device_is_refused(runtime, device):
    with pytest.raises(tp.ArgumentTypeError):
        runtime.resolve_device(device)


@pytest.mark.parametrize("device", ["nonsense", "cuda:-1", -1])
def test_what_torch_does_not_know_is_refused_with_its_reason(runtime, device):
    with pytest.raises(tp.ArgumentError) as caught:
        runtime.resolve_device(device)
    assert caught.value.__cause__ is not None


def test_facts_are_words_and_name_torch(runtime):
    facts = runtime.describe()
    assert facts["torch"] == torch.__version__
    assert "found" in facts["private names"] or "missing" in facts["private names"]


def test_a_missing_private_name_is_told_with_what_is_lost(runtime, monkeypatch):
    gone = _private.Private(None, "signature checks run in Python", cuda=False)
    monkeypatch.setitem(_private.PRIVATE, "tensor_guards", gone)
    assert "signature checks run in Python" in runtime.describe()["private names"]
    with pytest.raises(tp.UnsupportedByDriver, match="signature checks run in Python"):
        _private.required("tensor_guards", "checking")


# arrays


def test_copies_convert_but_never_broadcast(runtime):
    target = torch.zeros(2, 3)
    runtime.array_copy(target, torch.ones(3, 2, dtype=torch.float64).t())
    assert target.eq(1).all()
    for wrong in (torch.ones(3), torch.ones(1, 3), torch.ones(3, 2), torch.ones(())):
        with pytest.raises(tp.ArgumentError):
            runtime.array_copy(target, wrong)
    with pytest.raises(tp.ArgumentTypeError):
        runtime.array_copy(target, "text")
    assert target.eq(1).all()


def test_a_copy_takes_arrays_of_other_libraries(runtime):
    numpy = pytest.importorskip("numpy")
    target = torch.zeros(2)
    runtime.array_copy(target, numpy.array([1.0, 2.0]))
    assert target.tolist() == [1.0, 2.0]


def test_a_copy_leaves_no_trace_in_autograd_and_refuses_to_hide_one(runtime):
    leaf = torch.ones(2, requires_grad=True)
    target = runtime.array_like(leaf)
    assert not target.requires_grad
    with pytest.raises(tp.OperationRefused, match="gradients cannot follow"):
        runtime.array_copy(target, leaf)
    with torch.no_grad():
        runtime.array_copy(target, leaf)
    assert target.grad_fn is None
    assert target.tolist() == [1.0, 1.0]


def test_overlap_is_of_bytes_not_of_names(runtime):
    base = torch.zeros(10)
    assert runtime.array_overlap(base[:6], base[5:])
    assert not runtime.array_overlap(base[:5], base[5:])
    assert runtime.array_overlap(base[::2], base[1::2])  # Interleaved: may, though they do not.
    assert not runtime.array_overlap(base, torch.zeros(10))
    assert not runtime.array_overlap(base[:0], base)
    assert not runtime.array_overlap(base, None)


# signatures


def changed(tensor):
    return {
        "shape": torch.zeros(3, 5),
        "dtype": torch.zeros(3, 4, dtype=torch.float64),
        "stride": torch.zeros(4, 3).t(),
        "layout": torch.zeros(3, 4).to_sparse(),
        "is_conj": tensor,
    }


@pytest.mark.parametrize("fact", ["shape", "dtype", "stride", "layout"])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_each_difference_is_told_by_its_path(fact):
    static = [torch.zeros(2), torch.zeros(3, 4)]
    other = [torch.ones(2), changed(static[1])[fact]]
    assert not compile_check(static)(other)
    assert [line for line in differences(static, other) if f"inputs[1].{fact}: captured" in line]


def test_lazy_conjugation_is_a_difference():
    static = [torch.zeros(2, dtype=torch.complex64)]
    lazy = [torch.ones(2, dtype=torch.complex64).conj()]
    assert not compile_check(static)(lazy)
    assert differences(static, lazy) == ["inputs[0].is_conj: captured False, got True"]
    assert compile_check(lazy)(lazy)
    assert not compile_check(lazy)(static)


def test_what_does_not_matter_is_no_difference():
    static = [torch.zeros(1, 4), torch.zeros(0, 3)]
    alike = [
        torch.nn.Parameter(torch.zeros(1, 4).as_strided((1, 4), (77, 1))),
        torch.zeros(3, 0).t(),
    ]
    assert differences(static, alike) == []


@pytest.mark.parametrize("inputs", [[], [torch.zeros(2)] * 2, [None], [3.0]], ids=stable)
def test_a_check_says_no_to_another_count_and_to_what_is_no_tensor(inputs):
    static = [torch.zeros(2)]
    assert not compile_check(static)(inputs)
    assert differences(static, inputs)


def test_checks_in_python_say_the_same(monkeypatch):
    static = [torch.zeros(2), torch.zeros(3, 4)]
    cases = [static, [torch.ones(2), torch.ones(3, 4)], [torch.ones(2)], static[::-1], [1, 2]]
    fast = [compile_check(static)(case) for case in cases]
    gone = _private.Private(None, "", cuda=False)
    monkeypatch.setitem(_private.PRIVATE, "tensor_guards", gone)
    assert [compile_check(static)(case) for case in cases] == fast


# the card


def test_the_card_says_why_a_torch_will_not_do(monkeypatch):
    from tensorplay_torch import driver

    assert driver.viability() is None
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    assert "too old" in driver.viability()
    monkeypatch.setattr(torch, "__version__", "2.13.0+rocm7")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert "ROCm" in driver.viability()
