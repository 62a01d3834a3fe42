"""The backend for machines without torch: numpy alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import psutil

from cleave.compute.elements import BF16, STORAGE, Elements, decode, encode, to_bytes
from cleave.compute.executor import check_piece, memory_error, run_program
from cleave.compute.numpy_ops import FUNCTIONS
from cleave.core.matrix import DType, Region
from cleave.core.program import Program

_SET_THREADS = (
    "scipy_openblas_set_num_threads64_",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
)


class NumpyBackend:
    """Computes on the CPU with numpy; bf16 and fp16 in fp32, fp64 in fp64.

    Args:
        threads: Threads of a matrix product; None leaves it to the BLAS that numpy came with.
    """

    name = "numpy"

    def __init__(self, threads: int | None = None) -> None:
        """Set the number of threads."""
        if threads is not None:
            _limit_threads(threads)

    @property
    def ops(self) -> frozenset[str]:
        """Names of the program ops it has."""
        return frozenset(FUNCTIONS)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Element types it can take in and give out: all."""
        return tuple(DType)

    def empty(self, n_rows: int, n_cols: int, dtype: DType) -> Elements:
        """An array to be written piece by piece.

        Raises:
            DeviceMemoryError: If memory runs out.
        """
        try:
            return np.empty((n_rows, n_cols), dtype=STORAGE[dtype])
        except MemoryError as error:
            raise memory_error(error, psutil.virtual_memory().total) from error

    def write(self, array: Elements, region: Region, payload: memoryview) -> None:
        """Copy little-endian elements, row-major, into a region of an array made by `empty`.

        Raises:
            ProtocolError: If the region lies outside the array or the payload has another size.
        """
        check_piece(region, payload, shape=array.shape, itemsize=array.itemsize)
        piece = np.frombuffer(payload, dtype=array.dtype).reshape(region.n_rows, region.n_cols)
        self.view(array, region)[:] = piece

    def view(self, array: Elements, region: Region) -> Elements:
        """A region of an array, without a copy."""
        return array[region.row0 : region.row1, region.col0 : region.col1]

    def read(self, array: Elements, dtype: DType) -> memoryview:
        """The array's elements in ``dtype``, row-major, as bytes; copied only to cast or gather."""
        return to_bytes(encode(array, dtype))

    def run(self, program: Program, inputs: Sequence[Elements]) -> list[Elements]:
        """The program's outputs; dead intermediates are freed at once.

        Raises:
            ProgramError: If an op is unknown or misused.
            DeviceMemoryError: If memory runs out.
        """
        try:
            with np.errstate(all="ignore"):
                return run_program(program, inputs, FUNCTIONS)
        except MemoryError as error:
            raise memory_error(error, psutil.virtual_memory().total) from error

    def add(self, accumulator: Elements, array: Elements) -> None:
        """Add ``array`` to ``accumulator`` in place."""
        with np.errstate(all="ignore"):
            if accumulator.dtype == BF16:
                accumulator[:] = encode(decode(accumulator) + decode(array), DType.BF16)
            else:
                accumulator += decode(array)

    def n_bytes(self, array: Elements) -> int:
        """Bytes that an array occupies."""
        return array.nbytes

    def synchronize(self) -> None:
        """Nothing is ever queued."""


def _limit_threads(n_threads: int) -> None:
    """Tell numpy's BLAS; the usual environment variables count only before numpy is imported."""
    extension = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    for name in _SET_THREADS:
        if hasattr(extension, name):
            getattr(extension, name)(ctypes.c_int(n_threads))
