"""Random generators refuse numbers that do not fit before they ask anything of a GPU."""

from __future__ import annotations

import pytest

from tensorplay_core.errors import ArgumentError
from tensorplay_cupy.random import Generator


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "x"])
def test_a_seed_is_64_bits(seed):
    with pytest.raises(ArgumentError) as caught:
        Generator(seed)
    assert "seed" in caught.value.met
    assert "2**64" in caught.value.remedy


@pytest.mark.parametrize("stream", [-1, 2**64, None])
def test_a_stream_is_64_bits(stream):
    with pytest.raises(ArgumentError) as caught:
        Generator(1, stream=stream)
    assert "stream" in caught.value.met
