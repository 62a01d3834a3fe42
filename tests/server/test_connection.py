"""An attempt at a task: its results come whole, in order, and into their place alone."""

from __future__ import annotations

import pytest
import torch

from cleave.core.matrix import BlockRef, DType, Matrix, Region
from cleave.core.work import Fate, TaskOutput
from cleave.errors import ProtocolError
from cleave.server.connection import Attempt
from cleave.server.operands import as_bytes
from cleave.wire.messages import ResultPiece


def output(n_rows: int, n_cols: int, fate: Fate = Fate.RETURNED) -> TaskOutput:
    return TaskOutput(
        BlockRef(Matrix(1, n_rows, n_cols, DType.F32), Region(0, n_rows, 0, n_cols)), fate
    )


def piece(output: int, row0: int, row1: int, col0: int, col1: int) -> ResultPiece:
    return ResultPiece(7, output, row0, row1, col0, col1)


def elements(*values: float) -> memoryview:
    return as_bytes(torch.tensor(values, dtype=torch.float32))


def test_pieces_go_to_their_output_and_leave_the_rest_alone() -> None:
    whole = torch.zeros(3, 4)
    attempt = Attempt([output(2, 2), output(1, 2)], [whole[1:3, 1:3], torch.zeros(1, 2)])
    attempt.write(piece(0, 0, 1, 0, 2), elements(1, 2))
    attempt.write(piece(1, 0, 1, 0, 2), elements(5, 6))
    attempt.write(piece(0, 1, 2, 0, 1), elements(3))
    was_whole = attempt.is_whole
    attempt.write(piece(0, 1, 2, 1, 2), elements(4))
    assert (was_whole, attempt.is_whole) == (False, True)
    assert whole.tolist() == [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0]]
    assert attempt.sinks[1].tolist() == [[5, 6]]


def test_kept_outputs_are_not_waited_for_and_not_written() -> None:
    attempt = Attempt([output(2, 2, Fate.KEPT)], [None])
    assert attempt.is_whole
    with pytest.raises(ProtocolError, match="task 7 returns no output 0"):
        attempt.write(piece(0, 0, 1, 0, 2), elements(1, 2))


@pytest.mark.parametrize(
    ("bad_piece", "n_elements", "complaint"),
    [
        (piece(1, 0, 1, 0, 2), 2, "task 7 returns no output 1"),
        (piece(2**31 - 1, 0, 1, 0, 2), 2, "task 7 returns no output 2147483647"),
        (piece(0, 0, 1, 0, 2), 3, "carries 12 bytes, expected 8"),
        (piece(0, 0, 3, 0, 2), 6, "of a block of 2 x 2"),
        (piece(0, 0, 2, 0, 1), 2, "expected whole rows of it, or a part of one"),
        (piece(0, 1, 2, 0, 2), 2, "does not follow on row 0, column 0"),
        (piece(0, 1, 1, 0, 2), 0, "of a block of 2 x 2"),
    ],
)
def test_a_piece_that_is_not_the_next_one_changes_nothing(
    bad_piece: ResultPiece, n_elements: int, complaint: str
) -> None:
    attempt = Attempt([output(2, 2)], [torch.zeros(2, 2)])
    with pytest.raises(ProtocolError, match=complaint):
        attempt.write(bad_piece, elements(*[9.0] * n_elements))
    assert attempt.sinks[0].count_nonzero() == 0
    attempt.write(piece(0, 0, 2, 0, 2), elements(1, 2, 3, 4))
    assert attempt.is_whole


def test_no_piece_comes_twice() -> None:
    attempt = Attempt([output(1, 2)], [torch.zeros(1, 2)])
    attempt.write(piece(0, 0, 1, 0, 2), elements(1, 2))
    with pytest.raises(ProtocolError, match="does not follow on row 1"):
        attempt.write(piece(0, 0, 1, 0, 2), elements(3, 4))
    assert attempt.sinks[0].tolist() == [[1, 2]]
