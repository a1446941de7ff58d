"""Refusals of CuPy's become errors that name library, call, file and line, and a way round."""

from __future__ import annotations

import copy
import inspect

import cupy
import pytest

from tensorplay_core.errors import CaptureError, GraphStateError, OperationRefused
from tensorplay_cupy.refusals import refusal_of, refusing


class CUDARuntimeError(RuntimeError):
    """As CuPy's: known by its name and its words."""


class CUDADriverError(RuntimeError):
    """As CuPy's."""


class CuFFTError(RuntimeError):
    """As CuPy's."""


MET = {
    "cuBLAS": NotImplementedError(
        "calling cuBLAS API during stream capture is currently unsupported"
    ),
    "cuSPARSE": NotImplementedError(
        "calling cuSPARSE API during stream capture is currently unsupported"
    ),
    "cuSOLVER": NotImplementedError(
        "calling cuSOLVER API during stream capture is currently unsupported"
    ),
    "cuRAND": NotImplementedError(
        "calling cuRAND API during stream capture is currently unsupported"
    ),
    "D2H": RuntimeError("the current stream is capturing, so D2H transfers are disallowed"),
    "H2D": RuntimeError("the current stream is capturing, so H2D transfers are disallowed"),
    "sync": RuntimeError(
        "the current stream is capturing, so synchronous API calls are disallowed"
    ),
    "CUDA": CUDARuntimeError(
        "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"
    ),
    "driver": CUDADriverError(
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: operation not permitted when stream is capturing"
    ),
    "cuFFT": CuFFTError("CUFFT_EXEC_FAILED"),
    "broken": RuntimeError(
        "the stream was capturing, but an error has invalidated the capture sequence"
    ),
}
REMEDIES = {
    "cuBLAS": "tensorplay_cupy.linalg",
    "cuSPARSE": "sparse_matmul",
    "cuSOLVER": "cholesky",
    "cuRAND": "tensorplay_cupy.random.Generator",
    "D2H": "cond()",
    "cuFFT": "Run the transform once before the capture",
    "driver": "run the work once before the capture",
}


def library(error, module="cupy.linalg._solve", name="solve", then=None):
    """A function that looks as if it were CuPy's, and raises."""
    source = f"def {name}():\n    if then: then()\n    raise fresh(error)\n"
    names = {"__name__": module, "then": then, "error": error, "fresh": copy.copy}
    exec(compile(source, "/site-packages/" + module.replace(".", "/") + ".py", "exec"), names)
    return names[name]


def caught(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("kind", MET)
def test_each_refusal_has_four_parts_and_says_where(kind):
    call = library(MET[kind])
    line = inspect.currentframe().f_lineno + 1
    error = caught(lambda: call())
    refused = refusal_of(error)
    assert isinstance(refused, OperationRefused)
    assert isinstance(refused, CaptureError)
    for part in (refused.doing, refused.subject, refused.met, refused.remedy):
        assert part.strip()
        assert part in str(refused)
    assert "cupy.linalg.solve" in refused.operation
    assert str(error) in refused.met
    assert refused.where == f"{__file__}:{line}"


@pytest.mark.parametrize("kind", REMEDIES)
def test_the_remedy_names_what_to_use_instead(kind):
    assert REMEDIES[kind] in refusal_of(caught(library(MET[kind]))).remedy


def test_the_library_is_named():
    for kind in ("cuBLAS", "cuSPARSE", "cuSOLVER", "cuRAND", "cuFFT"):
        assert f"({kind})" in refusal_of(caught(library(MET[kind]))).operation


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        RuntimeError("the user's own"),
        NotImplementedError("the user's own"),
        AttributeError("'NoneType' object has no attribute 'append'"),
        GraphStateError(doing="a", subject="b", met="c", remedy="d"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_left_alone(error):
    assert refusal_of(caught(library(error))) is None


def test_a_callback_on_a_forked_stream_names_what_retains_it():
    error = AttributeError("'NoneType' object has no attribute 'append'")
    refused = refusal_of(caught(library(error, "cupy.cuda.stream", "launch_host_func")))
    assert "host_callback" in refused.remedy


def test_the_place_is_the_users_innermost_line():
    inner = library(MET["cuBLAS"], "cupy._core.core", "dot")
    outer = library(MET["cuBLAS"], "cupy._functional.vectorize", "apply", inner)
    assert "cupy.vectorize.apply" in refusal_of(caught(outer)).operation

    def called_back():
        inner()  # CuPy calls this, as it calls the function of a map.

    line = called_back.__code__.co_firstlineno + 1
    refused = refusal_of(caught(library(KeyError(), "cupy.lib", "map", called_back)))
    assert "cupy.core.dot" in refused.operation
    assert refused.where == f"{__file__}:{line}"


def test_compiled_frames_are_read_from_their_names(fake):
    from tensorplay_cupy.refusals import _place

    if cupy.cuda.is_available():
        pytest.skip("there is a GPU here, which would look for what is at the address")
    array = fake((4,))
    call, where = _place(caught(lambda: array.get()).__traceback__)
    assert call == "cupy.ndarray.get"
    assert where.startswith(__file__)


def test_the_block_raises_the_typed_error_from_cupys():
    with pytest.raises(OperationRefused) as refused, refusing():
        library(MET["D2H"])()
    assert str(refused.value.__cause__) == str(MET["D2H"])


def test_the_block_lets_other_errors_through():
    error = KeyError("x")
    with pytest.raises(KeyError) as met, refusing():
        raise error
    assert met.value is error
