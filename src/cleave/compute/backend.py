"""What an arithmetic backend offers: arrays, and programs run on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cleave.core.matrix import DType, Region
from cleave.core.program import Program

Array = Any


class Backend(Protocol):
    """Runs programs on one machine; chosen when an agent starts.

    Arrays are whatever the backend computes with. They are 2-D at the edges (blocks, outputs).
    """

    name: str

    @property
    def ops(self) -> frozenset[str]:
        """Names of the program ops it has."""
        ...

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Element types it can take in and give out."""
        ...

    def empty(self, n_rows: int, n_cols: int, dtype: DType) -> Array:
        """An array to be written piece by piece."""
        ...

    def write(self, array: Array, region: Region, payload: memoryview) -> None:
        """Copy little-endian elements, row-major, into a region of an array made by `empty`."""
        ...

    def view(self, array: Array, region: Region) -> Array:
        """A region of an array, without a copy."""
        ...

    def read(self, array: Array, dtype: DType) -> memoryview:
        """The array's elements in ``dtype``, row-major, as bytes; copied only where it must be."""
        ...

    def run(self, program: Program, inputs: Sequence[Array]) -> list[Array]:
        """The program's outputs; dead intermediates are freed at once.

        Raises:
            ProgramError: If an op is unknown or misused.
            DeviceMemoryError: If memory runs out.
        """
        ...

    def add(self, accumulator: Array, array: Array) -> None:
        """Add ``array`` to ``accumulator`` in place."""
        ...

    def n_bytes(self, array: Array) -> int:
        """Bytes that an array occupies."""
        ...

    def synchronize(self) -> None:
        """Wait until queued arithmetic is done (for timing)."""
        ...
