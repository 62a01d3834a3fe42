"""A task with a known result, and the check of what a device makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleave.compute.elements import STORAGE, Elements, decode, encode, from_bytes, to_bytes
from cleave.core.matrix import DType, Matrix, Region
from cleave.core.program import Program
from cleave.core.work import Work

Exact = npt.NDArray[np.float64]

# Error allowed per unit of |A| @ |B|: rounding of the result, and of sums kept in fp32 (in fp64 for
# fp64). A device that sums in a narrow type, or multiplies fp32 as TF32 (5e-4), is well above.
ROUNDING = {DType.F64: 1e-13, DType.F32: 2e-6, DType.F16: 1e-3, DType.BF16: 6e-3}


@dataclass(frozen=True, slots=True)
class Block:
    """An input of a case: 2-D elements as they cross the wire, and their type."""

    elements: Elements
    dtype: DType

    @classmethod
    def of(cls, values: Elements, dtype: DType) -> Block:
        """A block of these values, all that follows their first axis made one row."""
        return cls(encode(values.reshape(values.shape[0], -1), dtype), dtype)

    @property
    def matrix(self) -> Matrix:
        """What stands for it in a `Work`."""
        return stand_in(self.elements.shape, self.dtype)

    def exact(self) -> Exact:
        """The elements' values in fp64."""
        return decode(self.elements).astype(np.float64)

    def cut(self, region: Region) -> Block:
        """A region of it."""
        return Block(_cut(self.elements, region), self.dtype)

    def payload(self) -> memoryview:
        """The elements, row-major, as bytes."""
        return to_bytes(self.elements)


@dataclass(frozen=True, slots=True)
class Expected:
    """An output of a case: its exact values, and the largest error of each."""

    values: Exact
    tolerance: Exact

    def fault(self, result: Elements) -> str | None:
        """What is wrong with a result, None if nothing is."""
        if result.shape != self.values.shape:
            return f"has shape {result.shape}, expected {self.values.shape}"
        got = decode(result).astype(np.float64)
        with np.errstate(invalid="ignore"):
            is_near = np.abs(got - self.values) <= self.tolerance
        is_right = is_near & np.isfinite(self.values)
        is_right |= (got == self.values) | (np.isnan(got) & np.isnan(self.values))
        if is_right.all():
            return None
        row, col = (int(i) for i in np.argwhere(~is_right)[0])
        return (
            f"is wrong in {np.count_nonzero(~is_right)} of {is_right.size} elements: "
            f"[{row}, {col}] is {got[row, col]:.7g}, expected {self.values[row, col]:.7g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A task with a known result.

    Attributes:
        name: What it tries, for people.
        program: Bound.
        inputs: The program's.
        output_dtypes: The element type that each output is to be returned in.
        expected: Each output, worked out in fp64 from the very elements of ``inputs``.
    """

    name: str
    program: Program
    inputs: tuple[Block, ...]
    output_dtypes: tuple[DType, ...]
    expected: tuple[Expected, ...]

    @property
    def output_shapes(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of each output."""
        return tuple((e.values.shape[0], e.values.shape[1]) for e in self.expected)

    def check(self, results: Sequence[memoryview | bytes]) -> str | None:
        """What is wrong with a device's results, None if nothing is.

        Args:
            results: The elements of each output, row-major, as bytes in its ``output_dtypes``.
        """
        if len(results) != len(self.expected):
            return f"{self.name}: {len(results)} results, expected {len(self.expected)}"
        for index, (payload, expected) in enumerate(zip(results, self.expected, strict=True)):
            dtype, shape = self.output_dtypes[index], self.output_shapes[index]
            n_bytes = shape[0] * shape[1] * STORAGE[dtype].itemsize
            if memoryview(payload).nbytes != n_bytes:
                return f"{self.name}: result {index} is not {n_bytes} bytes long"
            fault = expected.fault(from_bytes(payload, shape, dtype))
            if fault is not None:
                return f"{self.name}: result {index} {fault}"
        return None


def make_case(
    work: Work, tile: Region, inputs: Sequence[Block], expected: Sequence[Expected]
) -> Case:
    """The case that is one tile of work.

    Args:
        work: Says what the tile reads and writes.
        tile: Which tile.
        inputs: The whole matrices that the work reads.
        expected: The whole matrices that it writes.
    """
    return Case(
        name=work.name,
        program=work.program.bind(tile),
        inputs=tuple(
            block.cut(operand.region(tile))
            for block, operand in zip(inputs, work.inputs, strict=True)
        ),
        output_dtypes=tuple(result.matrix.dtype for result in work.results),
        expected=tuple(
            Expected(_cut(e.values, region), _cut(e.tolerance, region))
            for e, region in zip(expected, (r.region(tile) for r in work.results), strict=True)
        ),
    )


def stand_in(shape: tuple[int, ...], dtype: DType) -> Matrix:
    """A matrix with no tensor behind it."""
    return Matrix(0, shape[0], shape[1], dtype)


def numbers(shape: tuple[int, ...], salt: int) -> Exact:
    """Normally distributed numbers, always the same ones for the same arguments."""
    return np.random.default_rng(salt).standard_normal(shape)


def _cut(array: Elements, region: Region) -> Elements:
    return array[region.row0 : region.row1, region.col0 : region.col1]
