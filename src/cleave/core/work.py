"""Work: a rectangle of computation that can be cut into tasks, and the tasks it is cut into.

Every operation is described in the same way: a rectangle of rows x cols, matrices whose regions
follow the rectangle's axes, and the program that computes one tile of it. From that alone follow
the bytes of a tile, its cost and its tasks (`docs/how-it-works.md`, "Work").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import msgspec

from cleave.core.matrix import BlockRef, DType, Matrix, Region
from cleave.core.program import Program
from cleave.errors import PlanError


class Along(str, Enum):
    """Which axis of the work rectangle a dimension of a matrix follows."""

    ROWS = "rows"
    COLS = "cols"
    INNER = "inner"
    ALL = "all"


class Fate(str, Enum):
    """What becomes of a task's output."""

    RETURNED = "returned"
    KEPT = "kept"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class Slabs:
    """An axis that is neither rows nor columns, cut in slabs: a rectangle each, side by side.

    Columns of the work rectangle count on from one slab to the next. No tile is in two slabs.

    Attributes:
        count: How many; every slab has some of the inner axis.
        n_cols: Columns of one slab.
        n_inner: Size of the inner axis.
    """

    count: int
    n_cols: int
    n_inner: int

    @property
    def depth(self) -> int:
        """Inner size of a slab; the last may have less."""
        return -(-self.n_inner // self.count)

    def at(self, tile: Region) -> int:
        """Which slab a tile is in."""
        return tile.col0 // self.n_cols if self.count > 1 else 0

    def span(self, tile: Region) -> tuple[int, int]:
        """The part of the inner axis that belongs to a tile."""
        if self.count == 1:
            return 0, self.n_inner
        start = self.at(tile) * self.depth
        return start, min(start + self.depth, self.n_inner)

    def finer(self, count: int) -> Slabs:
        """About so many slabs, none of them empty."""
        depth = -(-self.n_inner // max(1, min(count, self.n_inner)))
        return replace(self, count=max(1, -(-self.n_inner // max(1, depth))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A matrix that work reads or writes, and how its region follows the tile.

    Attributes:
        matrix: The matrix.
        rows: What its rows follow; `Along.ALL` means that every tile needs all of them.
        cols: What its columns follow.
        row_scale: Matrix rows per row or column of the rectangle.
        col_scale: Matrix columns per row or column of the rectangle.
        slabs: The inner axis of the work, if it has one.
    """

    matrix: Matrix
    rows: Along
    cols: Along
    row_scale: int = 1
    col_scale: int = 1
    slabs: Slabs | None = None

    def region(self, tile: Region) -> Region:
        """The region of the matrix that belongs to ``tile``."""
        row0, row1 = self._span(self.rows, self.row_scale, tile, self.matrix.n_rows)
        col0, col1 = self._span(self.cols, self.col_scale, tile, self.matrix.n_cols)
        return Region(row0, row1, col0, col1)

    def block(self, tile: Region) -> BlockRef:
        """The block of the matrix that belongs to ``tile``."""
        return BlockRef(self.matrix, self.region(tile))

    def _span(self, along: Along, scale: int, tile: Region, size: int) -> tuple[int, int]:
        if along is Along.ROWS:
            return tile.row0 * scale, tile.row1 * scale
        slabs = self.slabs
        if along is Along.COLS:
            before = 0 if slabs is None else slabs.at(tile) * slabs.n_cols
            return (tile.col0 - before) * scale, (tile.col1 - before) * scale
        if along is Along.INNER and slabs is not None:
            return slabs.span(tile)
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
        flops_per_cell: Floating-point operations of one cell (a multiply-add is 2), at full depth
            if the inner axis is cut in slabs.
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
    def slabs(self) -> Slabs | None:
        """Its inner axis, if that may be cut in slabs."""
        return self.results[0].slabs

    @property
    def slab_cols(self) -> int:
        """Columns of one slab; all of them if there is only one."""
        return self.n_cols if self.slabs is None else self.slabs.n_cols

    @property
    def rectangles(self) -> tuple[Region, ...]:
        """Every slab, each the largest tile that it can be; all of it if there is only one."""
        n_slabs = 1 if self.slabs is None else self.slabs.count
        width = self.slab_cols
        return tuple(Region(0, self.n_rows, i * width, (i + 1) * width) for i in range(n_slabs))

    def in_slabs(self, count: int) -> Work:
        """The work with its inner axis in about so many slabs, none empty: results are partial.

        Raises:
            PlanError: If it has no inner axis.
        """
        if self.slabs is None:
            raise PlanError(f"{self.name} has no inner axis, so it cannot be cut in {count} slabs")
        slabs = self.slabs.finer(count)
        return replace(
            self,
            n_cols=slabs.count * slabs.n_cols,
            inputs=tuple(replace(each, slabs=slabs) for each in self.inputs),
            results=tuple(replace(each, slabs=slabs) for each in self.results),
            flops_per_cell=self.flops_per_cell * slabs.depth / max(1, self.slabs.depth),
        )

    @property
    def dtype(self) -> DType:
        """The element type it computes with: that of its first input."""
        return self.inputs[0].matrix.dtype

    @property
    def ops(self) -> frozenset[str]:
        """Names of the ops a device needs for it."""
        return frozenset(op.name for op in self.program.ops)

    def flops(self, tile: Region) -> float:
        """Floating-point operations of ``tile``, which is in one slab."""
        slabs = self.slabs
        if slabs is None or slabs.count == 1:
            return self.flops_per_cell * tile.area
        start, stop = slabs.span(tile)
        return self.flops_per_cell * tile.area * (stop - start) / slabs.depth

    def is_partial(self, result: Result) -> bool:
        """Whether several tiles write the same region of ``result``, to be added up."""
        if result.slabs is not None and result.slabs.count > 1:
            return True
        follows = {result.rows, result.cols}
        return not {Along.ROWS, Along.COLS} <= follows


class TaskInput(msgspec.Struct, frozen=True, gc=False):
    """A region that a task reads, inside the block in which the device holds it."""

    block: BlockRef
    view: Region

    @property
    def is_whole(self) -> bool:
        """Whether the task reads all of the block."""
        return self.block.region == self.view


class TaskOutput(msgspec.Struct, frozen=True, gc=False):
    """A block that a task makes, what becomes of it, and whether others add to the same region."""

    block: BlockRef
    fate: Fate
    is_partial: bool = False


class Task(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A bound program on given blocks: small, independent of the others in flight, repeatable."""

    task_id: int
    program: Program
    inputs: tuple[TaskInput, ...]
    outputs: tuple[TaskOutput, ...]
    flops: float
    workspace_bytes: int
    priority: int = 0
