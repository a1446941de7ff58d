"""Random numbers inside captures: a generator whose counter is on the device and goes on.

cuRAND cannot be captured by CuPy. Here each draw reads the counter from device memory and advances
it there, so that a replay draws what an eager call would have drawn in its place, and the next
replay the numbers after those, in loops and branches of the device too.
"""

from __future__ import annotations

import math
import secrets
from functools import cache
from typing import Any

import cupy
import numpy

from tensorplay_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["Generator"]

_THREADS = 256
_MOST_BLOCKS = 4096
_KINDS = {"random": ("f", "d"), "standard_normal": ("f", "d"), "integers": ("q",)}

_SOURCE = r"""
typedef unsigned int word;
typedef unsigned long long wide;

__device__ void philox(wide low, wide high, word k0, word k1, word* x)
{
    word c0 = (word)low, c1 = (word)(low >> 32), c2 = (word)high, c3 = (word)(high >> 32);
    for (int round = 0; round < 10; ++round) {
        word l0 = 0xD2511F53u * c0, h0 = __umulhi(0xD2511F53u, c0);
        word l1 = 0xCD9E8D57u * c2, h1 = __umulhi(0xCD9E8D57u, c2);
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    x[0] = c0; x[1] = c1; x[2] = c2; x[3] = c3;
}

__device__ wide pair(const word* x, int i) { return (wide)x[2 * i] | ((wide)x[2 * i + 1] << 32); }

struct Random_f {
    static const int each = 4;
    typedef float type;
    __device__ static void draw(const word* x, float* y, long long, wide)
    { for (int i = 0; i < 4; ++i) y[i] = (x[i] >> 8) * 0x1p-24f; }
};

struct Random_d {
    static const int each = 2;
    typedef double type;
    __device__ static void draw(const word* x, double* y, long long, wide)
    { for (int i = 0; i < 2; ++i) y[i] = (pair(x, i) >> 11) * 0x1p-53; }
};

struct Standard_normal_f {
    static const int each = 4;
    typedef float type;
    __device__ static void draw(const word* x, float* y, long long, wide)
    {
        for (int i = 0; i < 2; ++i) {
            float radius = sqrtf(-2.0f * logf(((x[2 * i] >> 8) + 1) * 0x1p-24f));
            float turn = (x[2 * i + 1] >> 8) * 0x1p-23f;
            sincospif(turn, &y[2 * i + 1], &y[2 * i]);
            y[2 * i] *= radius;
            y[2 * i + 1] *= radius;
        }
    }
};

struct Standard_normal_d {
    static const int each = 2;
    typedef double type;
    __device__ static void draw(const word* x, double* y, long long, wide)
    {
        double radius = sqrt(-2.0 * log(((pair(x, 0) >> 11) + 1) * 0x1p-53));
        double turn = (pair(x, 1) >> 11) * 0x1p-52;
        sincospi(turn, &y[1], &y[0]);
        y[0] *= radius;
        y[1] *= radius;
    }
};

struct Integers_q {
    static const int each = 2;
    typedef long long type;
    __device__ static void draw(const word* x, long long* y, long long low, wide span)
    { for (int i = 0; i < 2; ++i) y[i] = low + (long long)__umul64hi(pair(x, i), span); }
};

// state: the counter, then how many blocks of threads have finished with it.
template <class Kind>
__device__ void fill(wide* state, wide seed, wide stream, typename Kind::type* out, long long size,
                     long long low, wide span)
{
    wide counter = *(volatile wide*)state;
    long long blocks = (size + Kind::each - 1) / Kind::each;
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < blocks; i += step) {
        word x[4];
        typename Kind::type y[Kind::each];
        philox(counter + i, stream, (word)seed, (word)(seed >> 32), x);
        Kind::draw(x, y, low, span);
        for (int j = 0; j < Kind::each; ++j)
            if (i * Kind::each + j < size) out[i * Kind::each + j] = y[j];
    }
    // The last block of threads to come here knows that all have read the counter.
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(&state[1], 1ull) == gridDim.x - 1) {
            state[0] = counter + blocks;
            state[1] = 0;
        }
    }
}

#define KERNEL(name, Kind)                                                                        \
    extern "C" __global__ void name(wide* state, wide seed, wide stream, Kind::type* out,         \
                                    long long size, long long low, wide span)                     \
    { fill<Kind>(state, seed, stream, out, size, low, span); }

KERNEL(random_f, Random_f)
KERNEL(random_d, Random_d)
KERNEL(standard_normal_f, Standard_normal_f)
KERNEL(standard_normal_d, Standard_normal_d)
KERNEL(integers_q, Integers_q)
"""


class Generator:
    """A Philox4x32-10 generator. Equal seed, stream and counter give equal numbers.

    Make it before the capture. Its draws are ordered by the streams they are made on: use one
    generator a stream, with a stream number of its own, where streams work side by side.

    Args:
        seed: 64 bits. None takes them from the system.
        stream: 64 bits; generators of one seed and different streams are independent.
        counter: Where to begin, in blocks of 128 bits.

    Raises:
        ArgumentError: A number does not fit 64 bits.
    """

    def __init__(self, seed: int | None = None, *, stream: int = 0, counter: int = 0) -> None:
        self.seed = _checked("seed", secrets.randbits(64) if seed is None else seed, 2**64)
        self.stream = _checked("stream", stream, 2**64)
        self._state = cupy.array([_checked("counter", counter, 2**64), 0], dtype="Q")
        # Loaded now: the first draw may be inside a capture.
        _kernels(int(cupy.cuda.runtime.getDevice()))

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, stream={self.stream})"

    @property
    def counter(self) -> int:
        """Blocks drawn so far. Reading it waits for the current stream, so not inside a capture.

        Setting it is work on that stream.
        """
        return int(self._state[0].get())

    @counter.setter
    def counter(self, value: int) -> None:
        self._state[0] = numpy.uint64(_checked("counter", value, 2**64))

    def random(self, size: int | tuple[int, ...], dtype: Any = "d", *, out: Any = None) -> Any:
        """Numbers from the uniform distribution over [0, 1).

        Args:
            size: Shape of the result.
            dtype: float32 or float64.
            out: Where to put them: row-major, of that shape and dtype. None makes it.

        Raises:
            ArgumentTypeError: Another dtype.
            ArgumentError: ``out`` does not fit.
        """
        return self._draw("random", size, dtype, out)

    def standard_normal(
        self, size: int | tuple[int, ...], dtype: Any = "d", *, out: Any = None
    ) -> Any:
        """Numbers from the normal distribution of mean 0 and variance 1, by Box and Muller.

        Args: as ``random``.

        Raises: as ``random``.
        """
        return self._draw("standard_normal", size, dtype, out)

    def integers(self, low: int, high: int, size: int | tuple[int, ...], *, out: Any = None) -> Any:
        """int64 numbers from ``low`` up to ``high``, without ``high``.

        Args:
            low: The least.
            high: One more than the greatest.
            size: Shape of the result.
            out: Where to put them. None makes it.

        Raises:
            ArgumentError: There is no such number, a bound is no int64, or ``out`` does not fit.
        """
        if not -(2**63) <= low < high <= 2**63 or high - low == 2**64:
            raise ArgumentError(
                doing="drawing",
                subject="integers",
                met=f"low is {low}, high {high}",
                remedy="Pass 64-bit bounds with low < high, and not all of their range.",
            )
        return self._draw("integers", size, "q", out, low, high - low)

    def _draw(
        self,
        kind: str,
        size: int | tuple[int, ...],
        dtype: Any,
        out: Any,
        low: int = 0,
        span: int = 0,
    ) -> Any:
        shape = (size,) if isinstance(size, int) else tuple(size)
        character = numpy.dtype(dtype).char.replace("l", "q")
        if character not in _KINDS[kind]:
            raise ArgumentTypeError(
                doing="drawing",
                subject=f"{kind} numbers",
                met=f"dtype is {numpy.dtype(dtype)}",
                remedy=f"Pass {' or '.join(str(numpy.dtype(one)) for one in _KINDS[kind])}.",
            )
        result = _into(out, shape, numpy.dtype(character))
        count = result.size
        if count:
            each = 4 if character == "f" else 2
            blocks = min(-(-count // (each * _THREADS)), _MOST_BLOCKS)
            kernel = _kernels(int(cupy.cuda.runtime.getDevice()))[f"{kind}_{character}"]
            numbers = (numpy.int64(count), numpy.int64(low), numpy.uint64(span))
            key = (numpy.uint64(self.seed), numpy.uint64(self.stream))
            kernel((blocks,), (_THREADS,), (self._state, *key, result, *numbers))
        return result


@cache
def _kernels(device: int) -> dict[str, Any]:
    module = cupy.RawModule(code=_SOURCE)
    names = [f"{kind}_{one}" for kind, characters in _KINDS.items() for one in characters]
    kernels = {name: module.get_function(name) for name in names}
    state, nothing = cupy.zeros(2, dtype="Q"), cupy.empty(2, dtype="Q")
    zero, none = numpy.uint64(0), numpy.int64(0)
    for kernel in kernels.values():
        # Drivers load a kernel at its first launch, which inside a capture may be illegal.
        kernel((1,), (_THREADS,), (state, zero, zero, nothing, none, none, zero))
    return kernels


def _checked(name: str, value: int, end: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < end:
        raise ArgumentError(
            doing="making",
            subject="a random generator",
            met=f"{name} is {value!r}",
            remedy=f"Pass an integer from 0 up to 2**{int(math.log2(end))}, without that.",
        )
    return value


def _into(out: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if out is None:
        return cupy.empty(shape, dtype=dtype)
    fits = isinstance(out, cupy.ndarray) and out.shape == shape and out.dtype == dtype
    if not fits or not out.flags.c_contiguous:
        raise ArgumentError(
            doing="drawing into",
            subject="argument out",
            met=f"it is {getattr(out, 'shape', type(out).__name__)} of "
            f"{getattr(out, 'dtype', 'no dtype')}",
            remedy=f"Pass a row-major CuPy array {shape} of {dtype}.",
        )
    return out
