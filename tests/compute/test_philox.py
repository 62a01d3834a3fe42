"""Dropout masks."""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cleave.compute.philox import keep_block, keep_mask, kept_factor, philox
from cleave.core.matrix import Region

# From the file of known answers that comes with Random123 (philox4x32, 10 rounds).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("xp", [np, torch])
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_words_are_those_of_the_reference(
    xp: ModuleType, counter: Sequence[int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    words = philox([xp.asarray([word], dtype=xp.int64) for word in counter], key)
    assert tuple(int(word[0]) for word in words) == expected


@given(
    starts=st.lists(st.integers(0, 2**62), min_size=1, max_size=4),
    count=st.integers(0, 40),
    seed=st.integers(0, 2**64 - 1),
)
def test_numpy_and_torch_keep_the_same_elements(starts: list[int], count: int, seed: int) -> None:
    by_numpy = keep_mask(np, starts, count, seed=seed, dropout=0.3)
    by_torch = keep_mask(torch, starts, count, seed=seed, dropout=0.3)
    assert by_numpy.shape == (len(starts), count)
    assert (by_numpy == by_torch.numpy()).all()


@given(start=st.integers(0, 2**40), count=st.integers(1, 50), seed=st.integers(0, 2**64 - 1))
def test_an_element_is_kept_by_its_index_alone(start: int, count: int, seed: int) -> None:
    together = keep_mask(np, [start], count, seed=seed, dropout=0.5)[0]
    alone = keep_mask(np, range(start, start + count), 1, seed=seed, dropout=0.5)[:, 0]
    assert (together == alone).all()


def test_a_block_has_the_mask_of_its_place() -> None:
    whole = keep_block(np, Region(0, 9, 0, 13), 13, seed=5, dropout=0.4)
    block = keep_block(np, Region(2, 7, 3, 10), 13, seed=5, dropout=0.4)
    assert (block == whole[2:7, 3:10]).all()


def test_long_masks_are_made_in_chunks_without_a_seam() -> None:
    whole = keep_mask(np, [3], 300_000, seed=1, dropout=0.25)[0]
    part = keep_mask(np, [3 + 131_000], 200, seed=1, dropout=0.25)[0]
    assert (whole[131_000:131_200] == part).all()
    # 300,000 draws: the share's standard deviation is 0.0008.
    assert abs(whole.mean() - 0.75) < 0.004


def test_another_seed_is_another_mask() -> None:
    masks = [keep_mask(np, [0], 1000, seed=s, dropout=0.5) for s in (0, 1, 1 << 32, 1 << 63)]
    for i, mask in enumerate(masks):
        for other in masks[:i]:
            # 1,000 fair coins: 500 agree, with a standard deviation of 16.
            assert 400 < (mask == other).sum() < 600


def test_probabilities_of_nothing_and_all() -> None:
    assert keep_mask(np, [7], 500, seed=3, dropout=0.0).all()
    assert not keep_mask(np, [7], 500, seed=3, dropout=1.0).any()
    assert kept_factor(0.0) == 1
    assert kept_factor(1.0) == 0
    with pytest.raises(ValueError, match="expected 0 to 1"):
        kept_factor(1.5)


def test_no_rows_make_no_mask() -> None:
    assert keep_mask(np, [], 5, seed=0, dropout=0.5).shape == (0, 5)
