"""What torch says of a capture that CUDA broke comes out as an error of the tree."""

from __future__ import annotations

import pytest
import torch

import tensorplay_torch as tp
from tensorplay_torch.cuda.broken import broken, of_block, of_operation
from tensorplay_torch.tracking.dispatch import CaptureDispatch

SEARCH = "\nSearch for `{}' in https://docs.nvidia.com/... for more information."


def said(name: str, code: int) -> RuntimeError:
    """As torch 2.11 words it."""
    error = torch.AcceleratorError(f"CUDA error: not permitted{SEARCH.format(name)}")
    error.error_code = code
    return error


@pytest.mark.parametrize(
    ("name", "code", "kind", "remedy"),
    [
        ("cudaErrorStreamCaptureUnsupported", 900, tp.CaptureInvalidated, ".item()"),
        ("cudaErrorStreamCaptureInvalidated", 901, tp.CaptureInvalidated, "swallowed"),
        ("cudaErrorStreamCaptureMerge", 902, tp.CaptureInvalidated, "side stream"),
        ("cudaErrorStreamCaptureUnjoined", 904, tp.UnjoinedWork, "wait_stream"),
        ("cudaErrorStreamCaptureImplicit", 906, tp.CaptureInvalidated, "default stream"),
    ],
)
def test_each_kind_says_what_to_do(name, code, kind, remedy):
    found = broken(said(name, code), "the capture on cuda:0")
    assert type(found) is kind
    assert remedy in found.remedy
    assert "not permitted" in found.met
    assert "Search for" not in str(found)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        KeyError("cudaErrorStreamCaptureInvalidated"),
        torch.OutOfMemoryError("CUDA out of memory"),
        tp.CaptureInvalidated(doing="a", subject="b", met="cudaErrorStreamCapture", remedy="c"),
        None,
    ],
    ids=repr,
)
def test_any_other_error_is_the_users(error):
    assert of_block(error) is None


def test_the_line_is_the_users_innermost():
    def work():
        raise said("cudaErrorStreamCaptureUnsupported", 900)

    with pytest.raises(RuntimeError) as caught:
        work()
    line = work.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}" in of_block(caught.value).subject


def test_a_library_that_is_first_used_in_a_capture_is_named_with_the_way_out():
    words = (
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: `cudnnCreate(handle)` failed",
    )
    for text, call in zip(words, ("cublasCreate", "cudnnCreate"), strict=True):
        refused = of_operation(RuntimeError(text), torch.ops.aten.mm.default, 0)
        assert isinstance(refused, tp.OperationRefused)
        assert refused.operation == "aten.mm"
        assert call in refused.met
        assert "before the capture" in refused.remedy


def test_an_operation_of_a_broken_capture_raises_it_from_torchs_own_error():
    def fail(func, args, kwargs):
        raise said("cudaErrorStreamCaptureInvalidated", 901)

    dispatch = CaptureDispatch(execute=fail, explain=of_operation)
    x = torch.ones(3)
    dispatch.start()
    try:
        with pytest.raises(tp.CaptureInvalidated, match=r"aten\.add") as caught:
            x + 1
    finally:
        dispatch.stop()
    assert isinstance(caught.value.__cause__, torch.AcceleratorError)
    assert any("while capturing aten.add" in note for note in caught.value.__cause__.__notes__)


def test_an_operation_that_fails_by_itself_raises_its_own_error():
    dispatch = CaptureDispatch(explain=of_operation)
    dispatch.start()
    try:
        with pytest.raises(RuntimeError, match="multiplied") as caught:
            torch.ones(2, 3) @ torch.ones(2, 3)
    finally:
        dispatch.stop()
    assert not isinstance(caught.value, tp.TensorplayError)
