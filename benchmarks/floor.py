"""Builds floor.cu and calls it: what C++ needs for the same launches, in the same process."""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).with_name("floor.cu")
FOLDER = "TENSORPLAY_FLOOR"
"""Environment variable: the folder of the built library."""


class FloorUnavailable(RuntimeError):
    """The floor cannot be built or a call of it failed, so nothing can be compared with it."""


class Floor:
    """The functions of floor.cu. Arrays are torch tensors on the current CUDA device."""

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL(str(build()))
        pointer, double = ctypes.c_void_p, ctypes.c_double
        library.floor_error.restype = ctypes.c_char_p
        library.floor_chain.restype = library.floor_while.restype = pointer
        library.floor_chain.argtypes = [pointer, ctypes.c_int]
        library.floor_while.argtypes = [pointer] * 4
        library.floor_body.restype = library.floor_launch.restype = double
        library.floor_body.argtypes = [pointer] * 5
        library.floor_launch.argtypes = [pointer, pointer, ctypes.c_int]

    def chain(self, x: object, nodes: int) -> int:
        """An executable of `nodes` kernels in a row, each adding one to the float `x`."""
        return self._made(self._library.floor_chain(_address(x), nodes))

    def loop(self, x: object, n: object, limit: object, predicate: object) -> int:
        """An executable of `n = 0; while n < limit: body(...)`."""
        arrays = map(_address, (x, n, limit, predicate))
        return self._made(self._library.floor_while(*arrays))

    def body(self, x: object, n: object, limit: object, predicate: object, stream: int) -> None:
        """Three kernels on `stream`: x += 1, n += 1, predicate = n < limit."""
        arrays = map(_address, (x, n, limit, predicate))
        self._done(self._library.floor_body(*arrays, stream))

    def launch(self, executable: int, stream: int, launches: int) -> float:
        """Host seconds of so many launches in a row."""
        return self._done(self._library.floor_launch(executable, stream, launches))

    def _made(self, executable: int | None) -> int:
        if executable is None:
            raise FloorUnavailable(self._library.floor_error().decode())
        return executable

    def _done(self, seconds: float) -> float:
        if seconds < 0:
            raise FloorUnavailable(self._library.floor_error().decode())
        return seconds


def _address(array: object) -> int:
    return int(array.data_ptr())  # type: ignore[attr-defined]


def build() -> pathlib.Path:
    """The shared library, for the current GPU; built once a run, where run.py says."""
    import torch

    folder = os.environ.get(FOLDER) or tempfile.mkdtemp(prefix="tensorplay-floor-")
    library = pathlib.Path(folder) / "floor.so"
    if library.exists():
        return library
    major, minor = torch.cuda.get_device_capability()
    target = ["-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", f"-arch=sm_{major}{minor}"]
    command = [nvcc(), *target, "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FloorUnavailable(f"{' '.join(command)} failed:\n{done.stderr}")
    return library


def nvcc() -> str:
    """The CUDA compiler of `CUDA_HOME`, of the path, or of the usual place."""
    places = (os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda")
    candidates = [shutil.which("nvcc"), *(f"{place}/bin/nvcc" for place in places if place)]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise FloorUnavailable("nvcc is not here; the floor in C++ needs it. Set CUDA_HOME.")
