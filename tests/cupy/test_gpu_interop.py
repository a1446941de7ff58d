"""Kernels and arrays of other libraries on one stream and in one graph, each kept by it."""

from __future__ import annotations

import gc

import cupy as cp
import numpy
import pytest

import tensorplay_cupy as tp

pytestmark = pytest.mark.gpu

SOURCE = r"""
extern "C" __global__ void scale(const float* x, float* y, float by, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = by * x[i];
}
"""


def storm(count=64):
    made = [cp.full(1 << 12, -7, dtype="f") for _ in range(count)]
    cp.cuda.Device().synchronize()
    return made


def test_a_raw_kernel_is_captured_and_its_arrays_are_kept():
    kernel = cp.RawKernel(SOURCE, "scale")
    x, y = cp.arange(1 << 12, dtype="f"), cp.empty(1 << 12, dtype="f")
    arguments = (x, y, numpy.float32(3), numpy.int32(x.size))
    kernel((16,), (256,), arguments)
    with tp.graph(tp.CUDAGraph()) as g:
        kernel((16,), (256,), arguments)
    expected = (3 * x).get()
    del x, arguments, kernel
    gc.collect()
    y.fill(0)
    storm()
    g.replay()
    numpy.testing.assert_array_equal(y.get(), expected)


def test_torch_tensors_by_dlpack_are_kept():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")
    tensor = torch.arange(1 << 12, dtype=torch.float32, device="cuda")
    x = cp.from_dlpack(tensor)
    x + 1
    with tp.graph(tp.CUDAGraph()) as g:
        y = x + 1
    tensor.fill_(5)
    torch.cuda.synchronize()
    g.replay()
    assert (y == 6).all()
    del tensor, x
    gc.collect()
    torch.cuda.empty_cache()
    kept = [torch.full((1 << 12,), -7.0, device="cuda") for _ in range(64)]
    torch.cuda.synchronize()
    g.replay()
    assert (y == 6).all()
    assert kept


def test_torch_works_on_the_stream_of_the_capture():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")
    x = torch.ones(1 << 12, device="cuda")
    out = torch.empty_like(x)
    view = cp.from_dlpack(out)
    torch.mul(x, 3, out=out)
    view += 1
    torch.cuda.synchronize()
    with tp.graph(tp.CUDAGraph()) as g:
        with torch.cuda.stream(torch.cuda.ExternalStream(cp.cuda.get_current_stream().ptr)):
            torch.mul(x, 3, out=out)
        view += 1
    x.fill_(2)
    torch.cuda.synchronize()
    del x
    gc.collect()
    torch.cuda.empty_cache()
    g.replay()
    assert (view == 7).all()


@pytest.mark.filterwarnings("ignore:.*under-utilization")  # The grid is small for a test.
@pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")  # numba, of NumPy.
def test_numba_kernels_are_captured_and_their_arrays_are_kept():
    try:
        from numba import cuda
    except (ImportError, AttributeError) as error:  # It lags behind NumPy.
        pytest.skip(f"numba.cuda cannot be imported here: {error}")
    if not cuda.is_available():
        pytest.skip("numba has no CUDA here")

    @cuda.jit
    def scale(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = 3 * x[i]

    x, y = cp.arange(1 << 12, dtype="f"), cp.empty(1 << 12, dtype="f")

    def launch(x):
        stream = cuda.external_stream(cp.cuda.get_current_stream().ptr)
        scale[16, 256, stream](cuda.as_cuda_array(x, sync=False), cuda.as_cuda_array(y, sync=False))

    with cp.cuda.Stream(non_blocking=True) as stream:
        try:
            launch(x)
        except AttributeError as error:
            if "numpy" not in str(error):
                raise
            pytest.skip(f"numba.cuda cannot compile with this NumPy: {error}")
        stream.synchronize()
    with tp.graph(tp.CUDAGraph(), capture_error_mode="relaxed") as g:
        launch(x)
    expected = (3 * x).get()
    del x
    gc.collect()
    y.fill(0)
    storm()
    g.replay()
    numpy.testing.assert_array_equal(y.get(), expected)


def test_triton_kernels_are_captured_and_their_arrays_are_kept():
    torch = pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    import triton.language as tl

    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")

    @triton.jit
    def scale(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, 3 * tl.load(x + at, mask=at < n), mask=at < n)

    x = torch.arange(1 << 12, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    seen = cp.from_dlpack(y)

    def launch(x):
        with torch.cuda.stream(torch.cuda.ExternalStream(cp.cuda.get_current_stream().ptr)):
            scale[(4,)](x, y, x.numel(), BLOCK=1024)

    with cp.cuda.Stream(non_blocking=True) as stream:
        launch(x)
        stream.synchronize()
    with tp.graph(tp.CUDAGraph()) as g:
        launch(x)
        seen += 1
    expected = (3 * x + 1).cpu().numpy()
    del x
    gc.collect()
    torch.cuda.empty_cache()
    kept = [torch.full((1 << 12,), -7.0, device="cuda") for _ in range(64)]
    torch.cuda.synchronize()
    g.replay()
    numpy.testing.assert_array_equal(seen.get(), expected)
    assert kept
