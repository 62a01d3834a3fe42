"""The host's side of matrices: tensors by id, blocks as bytes, results put in their place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from cleave.compute.torch_types import DTYPES, wire_dtype
from cleave.core.matrix import BlockRef, DType, Matrix, Region
from cleave.core.work import Fate, TaskOutput
from cleave.errors import OffloadError
from cleave.wire.pieces import pieces


class OperandStore:
    """Tensors that work reads and writes, by matrix. Any thread may call it."""

    def __init__(self) -> None:
        """Begin empty."""
        self._tensors: dict[int, torch.Tensor] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        """Matrices held."""
        return len(self._tensors)

    def adopt(self, tensor: torch.Tensor) -> Matrix:
        """A matrix for a contiguous 2-D tensor on the CPU, which is referenced and not copied.

        Raises:
            OffloadError: If the tensor is not that.
        """
        if tensor.dim() != 2 or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise OffloadError(
                f"expected a contiguous 2-D tensor on the CPU, got shape {tuple(tensor.shape)} "
                f"with strides {tensor.stride()} on {tensor.device}"
            )
        dtype = wire_dtype(tensor.dtype)
        if dtype is None:
            raise OffloadError(
                f"elements of type {tensor.dtype} cannot be sent to devices; "
                f"these can: {', '.join(each.value for each in DType)}"
            )
        tensor_id = next(self._ids)
        n_rows, n_cols = tensor.shape
        matrix = Matrix(tensor_id, n_rows, n_cols, dtype)
        self._tensors[tensor_id] = tensor.detach()
        return matrix

    def allocate(self, n_rows: int, n_cols: int, dtype: DType) -> Matrix:
        """A matrix to be written by work; its elements are undefined until then."""
        return self.adopt(torch.empty(n_rows, n_cols, dtype=DTYPES[dtype]))

    def tensor(self, matrix: Matrix) -> torch.Tensor:
        """The tensor of a matrix.

        Raises:
            OffloadError: If it has been released.
        """
        tensor = self._tensors.get(matrix.tensor_id)
        if tensor is None:
            raise OffloadError(f"matrix {matrix.tensor_id} was released")
        return tensor

    def release(self, matrix: Matrix) -> None:
        """Let go of a matrix."""
        self._tensors.pop(matrix.tensor_id, None)

    def payloads(
        self, block: BlockRef, row0: int, row1: int
    ) -> Iterator[tuple[Region, memoryview]]:
        """Rows of a block (in its coordinates) as pieces in order, with their elements."""
        tensor = self.tensor(block.matrix)
        region = block.region
        for piece in pieces(row0, row1, region.n_cols, block.matrix.dtype.itemsize):
            part = tensor[
                region.row0 + piece.row0 : region.row0 + piece.row1,
                region.col0 + piece.col0 : region.col0 + piece.col1,
            ].contiguous()
            yield piece, as_bytes(part)


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements of a contiguous CPU tensor, without a copy."""
    return tensor.view(torch.uint8).numpy().reshape(-1).data


def write_bytes(target: torch.Tensor, payload: memoryview) -> None:
    """Copy elements, row-major, into a 2-D CPU tensor whose rows are contiguous."""
    # By way of numpy: torch warns when it is given memory that it may only read.
    octets = target.view(torch.uint8).numpy()
    octets[:] = np.frombuffer(payload, dtype=np.uint8).reshape(octets.shape)


class WorkResults:
    """Where the results of one work go: in place, or, if partial, added up in a fixed order."""

    def __init__(self, store: OperandStore) -> None:
        """Nothing has come yet."""
        self._store = store
        self._staged: dict[Matrix, list[tuple[Region, Region, torch.Tensor]]] = {}

    def sinks(self, outputs: Sequence[TaskOutput]) -> list[torch.Tensor | None]:
        """For each output of a task, the tensor that its elements go to; None if it is kept."""
        return [self._sink(output) for output in outputs]

    def put(
        self, outputs: Sequence[TaskOutput], values: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """Write values that the host has computed; the sinks they went to."""
        sinks = self.sinks(outputs)
        for sink, value in zip(sinks, values, strict=True):
            if sink is not None:
                sink.copy_(value)
        return sinks

    def accept(
        self,
        tile: Region,
        outputs: Sequence[TaskOutput],
        sinks: Sequence[torch.Tensor | None],
    ) -> None:
        """The outputs of a tile, written to what `sinks` gave, count."""
        for output, sink in zip(outputs, sinks, strict=True):
            if output.is_partial and sink is not None:
                staged = self._staged.setdefault(output.block.matrix, [])
                staged.append((tile, output.block.region, sink))

    def finish(self) -> None:
        """Add partial results up in the order of their tiles, in fp32 at least."""
        for matrix, staged in self._staged.items():
            staged.sort(key=lambda entry: entry[0])
            self._add_up(matrix, staged)
        self._staged.clear()

    def _add_up(self, matrix: Matrix, staged: list[tuple[Region, Region, torch.Tensor]]) -> None:
        whole = self._store.tensor(matrix)
        if len(staged) == 1:
            whole.copy_(staged[0][2])
            return
        wide = whole.dtype in (torch.float32, torch.float64)
        total = whole.zero_() if wide else torch.zeros(whole.shape, dtype=torch.float32)
        for _, region, part in staged:
            total[region.row0 : region.row1, region.col0 : region.col1] += part
        if not wide:
            whole.copy_(total)

    def _sink(self, output: TaskOutput) -> torch.Tensor | None:
        if output.fate is not Fate.RETURNED:
            return None
        region = output.block.region
        if output.is_partial:
            dtype = DTYPES[output.block.matrix.dtype]
            return torch.empty(region.n_rows, region.n_cols, dtype=dtype)
        tensor = self._store.tensor(output.block.matrix)
        return tensor[region.row0 : region.row1, region.col0 : region.col1]
