"""Philox4x32-10 against the known answers of its authors, and what is drawn from it."""

from __future__ import annotations

import numpy
import pytest

from tensorplay_cupy import philox

# From the file kat_vectors of Random123, the reference implementation.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    assert tuple(philox.blocks(numpy.array(counter, dtype=numpy.uint32), key)) == expected


def test_words_count_from_the_counter_and_wrap():
    seed, stream = 0x299F31D0A4093822, 0x0370734413198A2E
    begin = 0x85A308D3243F6A88
    (found,) = philox.words(seed, stream, begin, 1)
    assert tuple(found) == KNOWN[2][2]
    together = philox.words(seed, stream, begin - 2, 5)
    assert tuple(together[2]) == KNOWN[2][2]
    wrapped = philox.words(seed, stream, 2**64 - 1, 2)
    assert (wrapped[1] == philox.words(seed, stream, 0, 1)[0]).all()


@pytest.mark.parametrize("dtype", ["f", "d"])
def test_uniform_numbers_are_in_the_half_open_interval_and_even(dtype):
    drawn = philox.uniform(7, 3, 11, 200_000, dtype)
    assert drawn.dtype == numpy.dtype(dtype)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts, _ = numpy.histogram(drawn, bins=16, range=(0, 1))
    # Chi square of 15 degrees of freedom: beyond 45 once in ten thousand.
    assert ((counts - 12_500) ** 2 / 12_500).sum() < 45


@pytest.mark.parametrize("dtype", ["f", "d"])
def test_a_longer_draw_begins_like_a_shorter_one(dtype):
    long, short = (philox.uniform(1, 2, 3, size, dtype) for size in (101, 10))
    assert (long[:10] == short).all()


def test_draws_go_on_where_the_last_ended():
    whole = philox.uniform(1, 2, 0, 80, "f")
    first, second = philox.uniform(1, 2, 0, 40, "f"), philox.uniform(1, 2, 10, 40, "f")
    assert (numpy.concatenate([first, second]) == whole).all()


def test_integers_fill_their_range_and_no_more():
    drawn = philox.integers(1, 0, 0, 7_000, -3, 7)
    assert set(drawn.tolist()) == set(range(-3, 4))
    counts = numpy.bincount(drawn + 3)
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 33
    assert (philox.integers(1, 0, 0, 100, 5, 1) == 5).all()


def test_streams_and_seeds_are_different_sequences():
    drawn = {
        philox.uniform(seed, stream, 0, 8, "d").tobytes()
        for seed in range(3)
        for stream in range(3)
    }
    assert len(drawn) == 9
