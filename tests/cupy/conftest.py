"""CuPy arrays that no GPU stands behind: form and address, and nothing to read."""

from __future__ import annotations

import itertools

import cupy
import pytest

_places = itertools.count(0x7F00_0000_0000, 1 << 20)


@pytest.fixture
def fake():
    """Makes an array of a shape and dtype, at an address of its own or a given one."""

    def make(shape, dtype="f", at=None, owner=None, strides=None):
        nbytes = 1 << 16
        address = next(_places) if at is None else at
        memory = cupy.cuda.UnownedMemory(address, nbytes, owner or object(), 0)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides=strides)

    return make


@pytest.fixture
def storm():
    """Eager allocation of the sizes that graphs use, filled with another value."""

    def run(shape=(1 << 14,), count=64, value=-7.0):
        made = [cupy.full(shape, value, dtype="f") for _ in range(count)]
        cupy.get_default_memory_pool().free_all_blocks()
        made += [cupy.full(shape, value, dtype="f") for _ in range(count)]
        cupy.cuda.Device().synchronize()

    return run


@pytest.fixture
def work():
    """Work with temporaries and a reduction."""

    def run(x):
        return cupy.sqrt(x * 2 + 1) + x.sum() - cupy.where(x > 2, x, -x)

    return run
