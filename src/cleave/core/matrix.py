"""Matrices on the server, and the regions of them that travel."""

from __future__ import annotations

from enum import Enum

import msgspec


class DType(str, Enum):
    """Element types that may cross the wire."""

    F64 = "float64"
    F32 = "float32"
    BF16 = "bfloat16"
    F16 = "float16"
    I64 = "int64"
    I32 = "int32"
    U8 = "uint8"
    BOOL = "bool"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {
    DType.F64: 8,
    DType.F32: 4,
    DType.BF16: 2,
    DType.F16: 2,
    DType.I64: 8,
    DType.I32: 4,
    DType.U8: 1,
    DType.BOOL: 1,
}


class Region(msgspec.Struct, frozen=True, order=True, gc=False):
    """The rectangle ``[row0:row1, col0:col1]`` of a matrix or of a work rectangle."""

    row0: int
    row1: int
    col0: int
    col1: int

    @property
    def n_rows(self) -> int:
        """Number of rows, 0 for an empty region."""
        return self.row1 - self.row0

    @property
    def n_cols(self) -> int:
        """Number of columns, 0 for an empty region."""
        return self.col1 - self.col0

    @property
    def area(self) -> int:
        """Number of elements."""
        return (self.row1 - self.row0) * (self.col1 - self.col0)

    def contains(self, other: Region) -> bool:
        """Whether every element of ``other`` lies in this region."""
        return (
            self.row0 <= other.row0
            and other.row1 <= self.row1
            and self.col0 <= other.col0
            and other.col1 <= self.col1
        )

    def within(self, outer: Region) -> Region:
        """This region in coordinates that start at the corner of ``outer``."""
        return Region(
            self.row0 - outer.row0,
            self.row1 - outer.row0,
            self.col0 - outer.col0,
            self.col1 - outer.col0,
        )


class Matrix(msgspec.Struct, frozen=True, gc=False):
    """A 2-D row-major tensor that never changes once it exists: a new version has a new id.

    A tensor of more dimensions is seen as a matrix: ``(batch, tokens, features)`` as
    ``(batch * tokens, features)``, ``(batch, heads, tokens, head_dim)`` as
    ``(batch, heads * tokens * head_dim)``.
    """

    tensor_id: int
    n_rows: int
    n_cols: int
    dtype: DType

    @property
    def whole(self) -> Region:
        """The region that is all of it."""
        return Region(0, self.n_rows, 0, self.n_cols)

    def region_bytes(self, region: Region) -> int:
        """Bytes of the elements of ``region``."""
        return region.area * self.dtype.itemsize


class BlockRef(msgspec.Struct, frozen=True, gc=False):
    """The name of an immutable block: a region of a matrix."""

    matrix: Matrix
    region: Region

    @property
    def n_bytes(self) -> int:
        """Bytes of the block's elements."""
        return self.matrix.region_bytes(self.region)
