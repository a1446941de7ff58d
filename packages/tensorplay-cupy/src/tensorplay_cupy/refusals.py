"""What CuPy and CUDA refuse inside a capture, said by name: library, call, place, and a way round.

It knows CuPy's exceptions by their classes' names and words, and imports nothing of CuPy.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType

from tensorplay_core.errors import OperationRefused, TensorplayError

__all__ = ["caller", "refusal_of", "refusing"]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A kind of refusal: who refuses, how its exception is known, and the way round."""

    library: str
    kind: str
    words: str
    remedy: str

    def fits(self, error: BaseException) -> bool:
        names = {one.__name__ for one in type(error).__mro__}
        return self.kind in names and re.search(self.words, str(error)) is not None


_CUPY = ("cupy", "cupyx", "cupy_backends")
_BETWEEN = ("tensorplay_core", "tensorplay_cupy", "pluggy", "contextlib")
_OUTSIDE = "do it before the capture or after the replay"
_KINDS = (
    _Refusal(
        "cuBLAS",
        "NotImplementedError",
        "cuBLAS API during stream capture",
        "Use tensorplay_cupy.linalg (matmul, dot, gemv), whose products can be captured, or "
        f"{_OUTSIDE}.",
    ),
    _Refusal(
        "cuSPARSE",
        "NotImplementedError",
        "cuSPARSE API during stream capture",
        "Use tensorplay_cupy.linalg.sparse_matmul, which can be captured, or " + _OUTSIDE + ".",
    ),
    _Refusal(
        "cuSOLVER",
        "NotImplementedError",
        "cuSOLVER API during stream capture",
        "Use tensorplay_cupy.linalg (cholesky, cho_solve, solve_triangular) where that does, or "
        f"{_OUTSIDE}.",
    ),
    _Refusal(
        "cuRAND",
        "NotImplementedError",
        "cuRAND API during stream capture",
        "Draw from a tensorplay_cupy.random.Generator, which goes on from replay to replay, or "
        "fill an array before each replay.",
    ),
    _Refusal(
        "CuPy",
        "RuntimeError",
        "stream is capturing, so .*(D2H|H2D|synchronous API calls)",
        "Values cannot move between host and device in a capture. Make constants before it and "
        "read results after the replay; decide on the device, by where(condition, x, y), cond() "
        "or while_loop().",
    ),
    _Refusal(
        "CuPy",
        "AttributeError",
        "'NoneType' object has no attribute 'append'",
        "On a stream forked into a capture use tensorplay_cupy.host_callback(fn, *args).",
    ),
    _Refusal(
        "cuFFT",
        "CuFFTError",
        "",
        "Run the transform once before the capture, in this thread, with the same shape, dtype "
        "and axes.",
    ),
    _Refusal(
        "CUDA",
        "CUDARuntimeError",
        "cudaErrorStreamCapture",
        "Do not wait for the device, query events or allocate by hand inside a capture, and keep "
        "off the legacy default stream.",
    ),
    _Refusal(
        "CUDA",
        "CUDADriverError",
        "CUDA_ERROR_STREAM_CAPTURE",
        "If a kernel was compiled or loaded here: run the work once before the capture, or capture "
        'with capture_error_mode="relaxed".',
    ),
    _Refusal(
        "CUDA",
        "RuntimeError",
        "stream was capturing, but an error has invalidated",
        "An earlier call broke the capture and its exception was swallowed: find that one.",
    ),
    _Refusal(
        "NCCL",
        "NcclError",
        "",
        "Set up communicators before the capture, and run the collective once.",
    ),
)


def refusal_of(error: BaseException) -> OperationRefused | None:
    """The typed error for one of CuPy's refusals, to be raised from it; None for any other error.

    ``operation`` names the library and CuPy's function, ``where`` the line of the user's code.
    """
    if isinstance(error, TensorplayError):
        return None
    known = next((kind for kind in _KINDS if kind.fits(error)), None)
    if known is None:
        return None
    call, where = _place(error.__traceback__)
    if known.kind == "AttributeError" and not call.endswith("launch_host_func"):
        return None
    message = str(error).strip().partition("\n")[0]
    refused = OperationRefused(
        operation=f"{call} ({known.library})" if call else f"a {known.library} call",
        where=where,
        met=f"{known.library} cannot be captured by CuPy here: {message}",
        remedy=known.remedy,
    )
    refused.add_note("inside a capture; the capture was discarded")
    return refused


@contextmanager
def refusing() -> Iterator[None]:
    """CuPy's refusals in the block become typed errors."""
    try:
        yield
    except Exception as error:
        refused = refusal_of(error)
        if refused is None:
            raise
        raise refused from error


def caller() -> str:
    """``"file:line"`` of the innermost frame on the stack that is the user's, ``""`` if none is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _package(frame) not in (*_CUPY, *_BETWEEN):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _place(trace: TracebackType | None) -> tuple[str, str]:
    """CuPy's function that the user called last, and the line that called it."""
    call, where = "", ""
    while trace is not None:
        frame = trace.tb_frame
        package = _package(frame)
        if package in _CUPY:
            call = call or _public(frame)
        elif package not in _BETWEEN:
            # Deeper code of the user's: what CuPy called back counts from here.
            call, where = "", f"{frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return call, where


def _public(frame: FrameType) -> str:
    """``"cupy.linalg.solve"`` for a frame of ``cupy/linalg/_solve.py``."""
    name = frame.f_code.co_name
    if frame.f_code.co_filename.endswith((".pyx", ".pxi", ".pxd")):
        path = name  # Compiled code has the whole path for a name.
    else:
        path = f"{frame.f_globals.get('__name__', 'cupy')}.{frame.f_code.co_qualname}"
    path = path.replace("cupy._core.core._ndarray_base", "cupy.ndarray")
    return ".".join(part for part in path.split(".") if not _private(part))


def _private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")
