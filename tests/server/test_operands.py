"""Tensors as blocks and back, and sums of partial results."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cleave.core.matrix import BlockRef, DType, Matrix, Region
from cleave.core.work import Fate, TaskOutput
from cleave.errors import OffloadError
from cleave.server.operands import OperandStore, WorkResults, as_bytes, write_bytes
from cleave.wire.messages import PIECE_BYTES


@pytest.fixture
def store() -> OperandStore:
    return OperandStore()


def numbered(n_rows: int, n_cols: int) -> torch.Tensor:
    return torch.arange(n_rows * n_cols, dtype=torch.float32).reshape(n_rows, n_cols)


def test_a_tensor_is_referenced_and_gone_once_released(store: OperandStore) -> None:
    tensor = numbered(2, 3)
    matrix = store.adopt(tensor)
    assert (matrix.n_rows, matrix.n_cols, matrix.dtype) == (2, 3, DType.F32)
    assert store.tensor(matrix).data_ptr() == tensor.data_ptr()
    store.release(matrix)
    store.release(matrix)
    assert len(store) == 0
    with pytest.raises(OffloadError, match="matrix 1 was released"):
        store.tensor(matrix)


def test_the_same_tensor_adopted_again_is_another_matrix(store: OperandStore) -> None:
    tensor = numbered(2, 3)
    assert store.adopt(tensor).tensor_id != store.adopt(tensor).tensor_id


@pytest.mark.parametrize(
    "unusable", [torch.ones(3), torch.ones(2, 3).T, torch.ones(2, 3, device="meta")]
)
def test_only_contiguous_matrices_on_the_cpu_are_adopted(
    store: OperandStore, unusable: torch.Tensor
) -> None:
    with pytest.raises(OffloadError, match="expected a contiguous 2-D tensor on the CPU, got"):
        store.adopt(unusable)


def test_element_types_that_do_not_travel_are_named(store: OperandStore) -> None:
    with pytest.raises(OffloadError, match=r"torch\.complex64 cannot be sent.*float64, float32"):
        store.adopt(torch.ones(2, 2, dtype=torch.complex64))


def test_rows_of_a_block_come_in_pieces_with_their_elements(store: OperandStore) -> None:
    n_cols = PIECE_BYTES // 8  # two rows of fp32 are a piece
    tensor = numbered(6, n_cols + 2)
    block = BlockRef(store.adopt(tensor), Region(1, 6, 1, n_cols + 1))
    found = list(store.payloads(block, 1, 4))
    assert [piece for piece, _ in found] == [Region(1, 3, 0, n_cols), Region(3, 4, 0, n_cols)]
    for piece, payload in found:
        rows = tensor[1 + piece.row0 : 1 + piece.row1, 1:-1]
        assert bytes(payload) == rows.numpy().tobytes()


def test_bytes_are_written_into_a_part_of_a_matrix_and_nowhere_else() -> None:
    target, part = torch.zeros(4, 5), numbered(2, 3)
    write_bytes(target[1:3, 1:4], as_bytes(part))
    expected = torch.zeros(4, 5)
    expected[1:3, 1:4] = part
    assert target.equal(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.bool])
def test_every_bit_of_an_element_comes_back(dtype: torch.dtype) -> None:
    octets = torch.arange(2 * 8 * 4, dtype=torch.uint8).reshape(2, -1)
    tensor = (octets % 2).bool() if dtype is torch.bool else octets.view(dtype)
    target = torch.zeros_like(tensor)
    write_bytes(target, memoryview(bytes(as_bytes(tensor))))
    assert target.view(torch.uint8).equal(tensor.view(torch.uint8))


class Sums:
    """Partial results of one matrix, accepted in any order."""

    def __init__(self, dtype: DType, n_parts: int, *, size: int = 1) -> None:
        self.store = OperandStore()
        self.matrix = self.store.allocate(size, size, dtype)
        self.results = WorkResults(self.store)
        whole = BlockRef(self.matrix, self.matrix.whole)
        self.outputs = [TaskOutput(whole, Fate.RETURNED, is_partial=True)]
        self.tiles = [Region(i, i + 1, 0, 1) for i in range(n_parts)]

    def add_up(self, parts: list[float], order: list[int]) -> torch.Tensor:
        for i in order:
            sinks = self.results.sinks(self.outputs)
            sinks[0].fill_(parts[i])
            self.results.accept(self.tiles[i], self.outputs, sinks)
        self.results.finish()
        return self.store.tensor(self.matrix).clone()


def test_partial_sums_do_not_depend_on_the_order_in_which_they_come() -> None:
    parts = [1e8, 1.0, -1e8, 0.3]  # in fp32 every order gives another sum
    expected = np.float32(0)
    for part in parts:
        expected += np.float32(part)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        assert Sums(DType.F32, 4).add_up(parts, order).item() == expected


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_narrow_partial_sums_are_added_in_fp32_and_rounded_once(dtype: DType) -> None:
    n_parts = 4096  # added one by one in either type, ones stop counting long before
    total = Sums(dtype, n_parts).add_up([1.0] * n_parts, list(range(n_parts)))
    assert total.item() == n_parts


def test_a_single_part_is_the_whole() -> None:
    sums = Sums(DType.BF16, 1, size=3)
    assert sums.add_up([0.5], [0]).equal(torch.full((3, 3), 0.5, dtype=torch.bfloat16))


def test_parts_of_different_regions_add_up_where_they_lie(store: OperandStore) -> None:
    matrix = store.allocate(4, 2, DType.F32)
    store.tensor(matrix).fill_(float("nan"))  # storage is not cleared
    results = WorkResults(store)
    for i, region in enumerate((Region(0, 2, 0, 2), Region(2, 4, 0, 2), Region(0, 2, 0, 2))):
        outputs = [TaskOutput(BlockRef(matrix, region), Fate.RETURNED, is_partial=True)]
        sinks = results.put(outputs, [torch.full((2, 2), float(i + 1))])
        results.accept(Region(0, 1, i, i + 1), outputs, sinks)
    results.finish()
    assert store.tensor(matrix).tolist() == [[4.0, 4.0]] * 2 + [[2.0, 2.0]] * 2


def test_kept_outputs_have_no_place_here_and_whole_ones_are_in_place(store: OperandStore) -> None:
    matrix = store.allocate(4, 4, DType.F32)
    region = Region(1, 3, 0, 2)
    kept = TaskOutput(BlockRef(Matrix(9, 2, 2, DType.F32), Region(0, 2, 0, 2)), Fate.KEPT)
    returned = TaskOutput(BlockRef(matrix, region), Fate.RETURNED)
    kept_sink, sink = WorkResults(store).sinks([kept, returned])
    assert kept_sink is None
    sink.fill_(7.0)
    assert store.tensor(matrix)[1:3, 0:2].equal(torch.full((2, 2), 7.0))
