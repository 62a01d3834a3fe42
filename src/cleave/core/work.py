"""Work: a rectangle of computation that can be cut into tasks, and the tasks it is cut into.

Every operation is described in the same way: a rectangle of rows x cols, matrices whose regions
follow the rectangle's axes, and the program that computes one tile of it. From that alone follow
the bytes of a tile, its cost and its tasks (`docs/how-it-works.md`, "Work").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cleave.core.matrix import BlockRef, DType, Matrix, Region
from cleave.core.program import Program


class Along(str, Enum):
    """Which axis of the work rectangle a dimension of a matrix follows."""

    ROWS = "rows"
    COLS = "cols"
    ALL = "all"


class Fate(str, Enum):
    """What becomes of a task's output."""

    RETURNED = "returned"
    KEPT = "kept"
    ADDED = "added"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A matrix that work reads or writes, and how its region follows the tile.

    Attributes:
        matrix: The matrix.
        rows: What its rows follow; `Along.ALL` means that every tile needs all of them.
        cols: What its columns follow.
        row_scale: Matrix rows per row or column of the rectangle.
        col_scale: Matrix columns per row or column of the rectangle.
    """

    matrix: Matrix
    rows: Along
    cols: Along
    row_scale: int = 1
    col_scale: int = 1

    def region(self, tile: Region) -> Region:
        """The region of the matrix that belongs to ``tile``."""
        row0, row1 = self._span(self.rows, self.row_scale, tile, self.matrix.n_rows)
        col0, col1 = self._span(self.cols, self.col_scale, tile, self.matrix.n_cols)
        return Region(row0, row1, col0, col1)

    def block(self, tile: Region) -> BlockRef:
        """The block of the matrix that belongs to ``tile``."""
        return BlockRef(self.matrix, self.region(tile))

    @staticmethod
    def _span(along: Along, scale: int, tile: Region, size: int) -> tuple[int, int]:
        if along is Along.ROWS:
            return tile.row0 * scale, tile.row1 * scale
        if along is Along.COLS:
            return tile.col0 * scale, tile.col1 * scale
        return 0, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Operand):
    """A matrix that work writes. Tiles that write the same region write partial sums of it."""

    fate: Fate = Fate.RETURNED


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A rectangle of ``n_rows x n_cols`` that may be cut into tiles, each an independent task.

    Attributes:
        name: What it is, for people: ``"forward"``, ``"input grad"``.
        n_rows: Rows of the rectangle.
        n_cols: Columns of the rectangle.
        inputs: What a tile reads, in the order of the program's inputs.
        results: What a tile writes, in the order of the program's outputs.
        program: Computes one tile.
        flops_per_cell: Floating-point operations of one cell (a multiply-add is 2).
        workspace_bytes_per_cell: Memory a task needs beyond inputs and outputs, per cell.
        row_quantum: Tiles begin at multiples of this many rows.
        col_quantum: Tiles begin at multiples of this many columns.
        priority: Smaller is sooner; what others wait for comes first.
    """

    name: str
    n_rows: int
    n_cols: int
    inputs: tuple[Operand, ...]
    results: tuple[Result, ...]
    program: Program
    flops_per_cell: float
    workspace_bytes_per_cell: float = 0.0
    row_quantum: int = 1
    col_quantum: int = 1
    priority: int = 0

    @property
    def whole(self) -> Region:
        """The tile that is all of it."""
        return Region(0, self.n_rows, 0, self.n_cols)

    @property
    def dtype(self) -> DType:
        """The element type it computes with: that of its first input."""
        return self.inputs[0].matrix.dtype

    @property
    def ops(self) -> frozenset[str]:
        """Names of the ops a device needs for it."""
        return frozenset(op.name for op in self.program.ops)

    def flops(self, tile: Region) -> float:
        """Floating-point operations of ``tile``."""
        return self.flops_per_cell * tile.area

    def is_partial(self, result: Result) -> bool:
        """Whether tiles side by side write the same region of ``result``, to be added up."""
        follows = {result.rows, result.cols}
        return not {Along.ROWS, Along.COLS} <= follows


@dataclass(frozen=True, slots=True)
class TaskInput:
    """A region that a task reads, inside the block in which the device holds it."""

    block: BlockRef
    view: Region

    @property
    def is_whole(self) -> bool:
        """Whether the task reads all of the block."""
        return self.block.region == self.view


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """A block that a task makes, what becomes of it, and whether others add to the same region."""

    block: BlockRef
    fate: Fate
    is_partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A bound program on given blocks: small, independent of the others in flight, repeatable."""

    task_id: int
    program: Program
    inputs: tuple[TaskInput, ...]
    outputs: tuple[TaskOutput, ...]
    flops: float
    workspace_bytes: int
    priority: int = 0
