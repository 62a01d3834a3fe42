"""Dropout masks by Philox4x32-10: what is kept depends on the seed and an element's index alone.

The same code runs on numpy arrays and on torch tensors: it is all wrapping 64-bit arithmetic.
A mask costs 4 to 6 ns per element on one CPU core: as long as some 300 multiply-adds of a GEMM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cleave.compute.backend import Array
from cleave.core.matrix import Region

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_PER_BLOCK = 8  # decisions from one 128-bit block, 16 bits each
_CHUNK = 1 << 14  # blocks whose intermediates fit a core's cache


def philox(counter: Sequence[Array], key: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Four random 32-bit words per counter.

    Args:
        counter: Four int64 arrays of one shape, each element in ``0 .. 2**32 - 1``.
        key: Two numbers in that range.

    References:
        Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        # The high halves of the products still lie in c1 and c3: one mask a round clears them.
        c0 = product1 >> 32
        c0 ^= c1
        c0 ^= k0
        c0 &= _LOW
        c2 = product0 >> 32
        c2 ^= c3
        c2 ^= k1
        c2 &= _LOW
        c1, c3 = product1, product0
        k0 = (k0 + _KEY_STEPS[0]) & _LOW
        k1 = (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1 & _LOW, c2, c3 & _LOW


def keep_mask(xp: Any, starts: Sequence[int], count: int, *, seed: int, dropout: float) -> Array:
    """Which elements are kept: bool, ``(len(starts), count)``; row r covers ``starts[r]`` and on.

    Args:
        xp: numpy or torch.
        starts: Global index of each row's first element, 0 or more.
        count: Elements per row, whose global indices follow one another.
        seed: The key; its lowest 64 bits count.
        dropout: Probability that an element is not kept, honoured to 2**-16.
    """
    threshold = round(dropout * (1 << 16))
    n_blocks = (count + 2 * _PER_BLOCK - 2) // _PER_BLOCK
    first = xp.asarray([start // _PER_BLOCK for start in starts], dtype=xp.int64)
    blocks = (first[:, None] + xp.arange(n_blocks, dtype=xp.int64)).reshape(-1)
    chunks = [
        _decide(xp, blocks[i : i + _CHUNK], seed, threshold)
        for i in range(0, len(starts) * n_blocks, _CHUNK)
    ]
    if not chunks:
        return xp.zeros((0, count)) > 0
    drawn = xp.concatenate(chunks).reshape(len(starts), n_blocks * _PER_BLOCK)
    phases = {start % _PER_BLOCK for start in starts}
    if len(phases) == 1:
        phase = phases.pop()
        return drawn[:, phase : phase + count]
    kept = xp.empty_like(drawn[:, :count])
    for phase in phases:
        rows = [row for row, start in enumerate(starts) if start % _PER_BLOCK == phase]
        kept[rows] = drawn[rows, phase : phase + count]
    return kept


def keep_block(xp: Any, block: Region, n_cols: int, *, seed: int, dropout: float) -> Array:
    """The mask of a block of a matrix whose elements are counted row by row.

    Args:
        xp: numpy or torch.
        block: Where it lies.
        n_cols: Columns of the whole matrix.
        seed: As for `keep_mask`.
        dropout: As for `keep_mask`.
    """
    whole_rows = block.n_cols == n_cols
    first = block.row0 * n_cols + block.col0
    starts = range(first, first + (1 if whole_rows else block.n_rows) * n_cols, n_cols)
    count = block.area if whole_rows else block.n_cols
    kept = keep_mask(xp, starts, count, seed=seed, dropout=dropout)
    return kept.reshape(block.n_rows, block.n_cols)


def kept_factor(dropout: float) -> float:
    """What a kept element is multiplied by, so that the mean stays the same.

    Raises:
        ValueError: If ``dropout`` is not a probability.
    """
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout is {dropout}, expected 0 to 1")
    return 0.0 if dropout == 1 else 1 / (1 - dropout)


def _decide(xp: Any, blocks: Array, seed: int, threshold: int) -> Array:
    zeros = xp.zeros_like(blocks)
    counter = (blocks & _LOW, (blocks >> 32) & _LOW, zeros, zeros)
    words = philox(counter, (seed & _LOW, (seed >> 32) & _LOW))
    kept = [
        half for word in words for half in ((word & 0xFFFF) >= threshold, word >= threshold << 16)
    ]
    return xp.stack(kept, -1).reshape(-1)
