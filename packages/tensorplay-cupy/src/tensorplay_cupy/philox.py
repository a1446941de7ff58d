"""Philox4x32-10, a counter-based random generator (Salmon et al., SC'11), in NumPy.

Random numbers are a function of a key and a counter alone, so a generator's whole state is one
number. The device computes the same (``random``); this is what it is tested against, and what
predicts on the host what a graph will draw.
"""

from __future__ import annotations

from typing import Any

import numpy

__all__ = ["blocks", "integers", "uniform", "words"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = numpy.uint64(0xFFFFFFFF)
_HALF = numpy.uint64(32)


def blocks(counter: Any, key: tuple[int, int]) -> Any:
    """The random words of counters.

    Args:
        counter: ``(..., 4)`` uint32, the least significant word first.
        key: Two words.

    Returns:
        ``(..., 4)`` uint32.
    """
    x = [numpy.asarray(counter, dtype=numpy.uint32)[..., place] for place in range(4)]
    x = [word.astype(numpy.uint64) for word in x]
    k0, k1 = key
    for _ in range(10):
        one, two = (x[2 * half] * numpy.uint64(_MULTIPLIERS[half]) for half in range(2))
        x = [
            (two >> _HALF) ^ x[1] ^ numpy.uint64(k0),
            two & _LOW,
            (one >> _HALF) ^ x[3] ^ numpy.uint64(k1),
            one & _LOW,
        ]
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return numpy.stack(x, axis=-1).astype(numpy.uint32)


def words(seed: int, stream: int, counter: int, count: int) -> Any:
    """``count`` blocks of a generator from ``counter`` on: ``(count, 4)`` uint32.

    Args:
        seed: 64 bits, the key.
        stream: 64 bits, the upper half of the counter.
        counter: 64 bits, the lower half, which wraps.
        count: How many.
    """
    low = numpy.uint64(counter) + numpy.arange(count, dtype=numpy.uint64)
    columns = [
        low & _LOW,
        low >> _HALF,
        numpy.full(count, stream & 0xFFFFFFFF, dtype=numpy.uint64),
        numpy.full(count, stream >> 32, dtype=numpy.uint64),
    ]
    together = numpy.stack(columns, axis=-1).astype(numpy.uint32)
    return blocks(together, (seed & 0xFFFFFFFF, seed >> 32))


def uniform(seed: int, stream: int, counter: int, size: int, dtype: Any) -> Any:
    """What ``Generator.random`` draws: ``size`` numbers in [0, 1).

    float32 takes the upper 24 bits of a word, float64 the upper 53 of two words.
    """
    if numpy.dtype(dtype) == numpy.float32:
        drawn = words(seed, stream, counter, -(-size // 4)).reshape(-1)[:size]
        return (drawn >> numpy.uint32(8)).astype(numpy.float32) * numpy.float32(2.0**-24)
    wide = _wide(seed, stream, counter, size)
    return (wide >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53


def integers(seed: int, stream: int, counter: int, size: int, low: int, span: int) -> Any:
    """What ``Generator.integers`` draws: ``size`` int64 from ``low`` up to ``low + span``, without.

    It is the upper half of the product of 64 random bits with ``span``: no value is likelier than
    another by more than ``span / 2**64``.
    """
    wide = _wide(seed, stream, counter, size)
    products = [low + ((int(word) * span) >> 64) for word in wide]
    return numpy.array(products, dtype=numpy.int64)


def _wide(seed: int, stream: int, counter: int, size: int) -> Any:
    drawn = words(seed, stream, counter, -(-size // 2)).reshape(-1, 2)[:size].astype(numpy.uint64)
    return drawn[:, 0] | (drawn[:, 1] << _HALF)
