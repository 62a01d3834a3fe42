"""Pieces cover a block in order, and only the next one is taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleave.core.matrix import Region
from cleave.errors import ProtocolError
from cleave.wire.pieces import PrefixCursor, pieces


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(1, 40),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(8, 200),
)
def test_pieces_are_small_and_follow_on_each_other(
    row0: int, n_rows: int, n_cols: int, itemsize: int, piece_bytes: int
) -> None:
    cursor = PrefixCursor(row0 + n_rows, n_cols, itemsize)
    cursor.rows = row0
    for piece in pieces(row0, row0 + n_rows, n_cols, itemsize, piece_bytes):
        assert piece.area * itemsize <= piece_bytes
        cursor.advance(piece, piece.area * itemsize)
    assert (cursor.rows, cursor.cols) == (row0 + n_rows, 0)
    assert cursor.is_full


def test_whole_rows_are_grouped_and_long_rows_are_cut() -> None:
    # 3 rows of 8 bytes fit in 24; a row of 40 bytes is cut into runs of 6 elements.
    assert list(pieces(0, 4, 2, 4, 24)) == [Region(0, 3, 0, 2), Region(3, 4, 0, 2)]
    assert list(pieces(1, 2, 10, 4, 24)) == [Region(1, 2, 0, 6), Region(1, 2, 6, 10)]


def at(rows: int, cols: int) -> PrefixCursor:
    cursor = PrefixCursor(5, 10, 1)
    cursor.rows, cursor.cols = rows, cols
    return cursor


@pytest.mark.parametrize(
    ("piece", "n_bytes"),
    [
        (Region(3, 4, 0, 10), 10),  # a gap of rows
        (Region(2, 3, 6, 10), 4),  # a gap of columns
        (Region(2, 4, 4, 10), 12),  # not a rectangle that continues the prefix
        (Region(2, 3, 4, 11), 7),  # leaves the block
        (Region(2, 6, 0, 10), 40),
        (Region(2, 3, 4, 8), 3),  # not its bytes
        (Region(2, 3, 4, 4), 0),  # empty
        (Region(3, 2, 4, 8), 4),
    ],
)
def test_a_piece_that_is_not_the_next_is_refused(piece: Region, n_bytes: int) -> None:
    for take in (PrefixCursor.advance, PrefixCursor.overlay):
        cursor = at(2, 4)
        with pytest.raises(ProtocolError, match="piece"):
            take(cursor, piece, n_bytes)
        assert (cursor.rows, cursor.cols) == (2, 4)


def test_a_repeated_piece_is_refused_as_a_result_and_harmless_in_a_block() -> None:
    cursor = at(2, 4)
    with pytest.raises(ProtocolError, match="does not follow"):
        cursor.advance(Region(0, 2, 0, 10), 20)
    cursor.overlay(Region(0, 2, 0, 10), 20)
    assert (cursor.rows, cursor.cols) == (2, 4)
    cursor.overlay(Region(1, 4, 0, 10), 30)
    assert (cursor.rows, cursor.cols) == (4, 0)
