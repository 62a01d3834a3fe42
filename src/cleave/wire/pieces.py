"""How a block is cut into pieces, and the rule that pieces arrive in order: for both sides, no I/O.

The pieces of a block come in row-major order without gaps (`docs/protocol.md`, "Pieces"), so what
has arrived is always a prefix of the block: whole rows, then perhaps the left part of one more.
"""

from __future__ import annotations

from collections.abc import Iterator

from cleave.core.matrix import Region
from cleave.errors import ProtocolError
from cleave.wire.messages import PIECE_BYTES


def pieces(
    row0: int, row1: int, n_cols: int, itemsize: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[Region]:
    """Regions of at most ``piece_bytes`` that cover rows ``row0:row1`` of a block, in order.

    Whole rows are grouped; a row that is larger than a piece is cut into runs of columns.
    """
    row_bytes = n_cols * itemsize
    if row_bytes > piece_bytes:
        step = max(1, piece_bytes // itemsize)
        for row in range(row0, row1):
            for col0 in range(0, n_cols, step):
                yield Region(row, row + 1, col0, min(col0 + step, n_cols))
        return
    step = piece_bytes // max(1, row_bytes)
    for row in range(row0, row1, step):
        yield Region(row, min(row + step, row1), 0, n_cols)


class PrefixCursor:
    """How far a block has been filled by pieces.

    Attributes:
        n_rows: Rows of the block.
        n_cols: Its columns.
        itemsize: Bytes of an element.
        rows: Whole rows that are there.
        cols: Columns of the row after them that are there.
    """

    __slots__ = ("cols", "itemsize", "n_cols", "n_rows", "rows")

    def __init__(self, n_rows: int, n_cols: int, itemsize: int) -> None:
        self.n_rows = n_rows
        self.n_cols = n_cols
        self.itemsize = itemsize
        self.rows = 0
        self.cols = 0

    @property
    def is_full(self) -> bool:
        """Whether every element is there."""
        return self.rows >= self.n_rows

    def advance(self, piece: Region, payload_bytes: int) -> None:
        """Count a piece that has arrived; it must be the next one.

        Raises:
            ProtocolError: If it is not, or leaves the block, or its size is not that of its
                elements; the cursor is then unchanged.
        """
        self._check(piece, payload_bytes)
        if (piece.row0, piece.col0) != (self.rows, self.cols):
            raise self._out_of_order(piece)
        self.rows, self.cols = self._end(piece)

    def overlay(self, piece: Region, payload_bytes: int) -> None:
        """Count a piece that has arrived; it may repeat what is there, but not leave a gap.

        Raises:
            ProtocolError: As for `advance`.
        """
        self._check(piece, payload_bytes)
        if (piece.row0, piece.col0) > (self.rows, self.cols):
            raise self._out_of_order(piece)
        self.rows, self.cols = max((self.rows, self.cols), self._end(piece))

    def _end(self, piece: Region) -> tuple[int, int]:
        return (piece.row1, 0) if piece.col1 == self.n_cols else (piece.row0, piece.col1)

    def _check(self, piece: Region, payload_bytes: int) -> None:
        inside = 0 <= piece.row0 < piece.row1 <= self.n_rows
        inside = inside and 0 <= piece.col0 < piece.col1 <= self.n_cols
        if not inside or (piece.n_rows > 1 and piece.n_cols != self.n_cols):
            raise ProtocolError(
                f"piece {_text(piece)} of a block of {self.n_rows} x {self.n_cols}: "
                "expected whole rows of it, or a part of one"
            )
        expected_bytes = piece.area * self.itemsize
        if payload_bytes != expected_bytes:
            raise ProtocolError(
                f"piece {_text(piece)} carries {payload_bytes} bytes, expected {expected_bytes}"
            )

    def _out_of_order(self, piece: Region) -> ProtocolError:
        return ProtocolError(
            f"piece {_text(piece)} does not follow on row {self.rows}, column {self.cols}: "
            "pieces come in row-major order without gaps"
        )


def _text(piece: Region) -> str:
    return f"[{piece.row0}:{piece.row1}, {piece.col0}:{piece.col1}]"
