"""Arguments of launches as the driver keeps them, read without a GPU."""

from __future__ import annotations

import ctypes
import itertools

import pytest

from tensorplay_core.drivers.cuda import topology

KEYS = {"end": 0, "buffer": 1, "size": 2}


@pytest.mark.parametrize("order", list(itertools.permutations(["buffer", "size"])))
@pytest.mark.parametrize("content", [b"", b"a", bytes(range(200))])
def test_packed_arguments_are_read_whole(order, content):
    held = ctypes.create_string_buffer(content, max(len(content), 1))
    size = ctypes.c_size_t(len(content))
    values = {"buffer": ctypes.addressof(held), "size": ctypes.addressof(size)}
    pairs = [word for key in order for word in (KEYS[key], values[key])]
    extra = (ctypes.c_uint64 * (len(pairs) + 2))(*pairs, KEYS["end"], 0)
    assert topology.packed(ctypes.addressof(extra)) == content


def test_no_arguments_are_none():
    extra = (ctypes.c_uint64 * 2)(KEYS["end"], 0)
    assert topology.packed(ctypes.addressof(extra)) == b""
