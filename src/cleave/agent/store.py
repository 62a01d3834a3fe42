"""The blocks that an agent holds, and the account of every byte that its owner lends."""

from __future__ import annotations

from dataclasses import dataclass, field

from cleave.compute.backend import Array, Backend
from cleave.core.matrix import DType, Region
from cleave.errors import ProtocolError
from cleave.wire.pieces import PrefixCursor


@dataclass(slots=True, eq=False, kw_only=True)
class Block:
    """A block, filled by pieces or made by tasks.

    Attributes:
        handle: Its number.
        array: Its elements; None until a task has made it.
        dtype: Of its elements.
        cursor: Its size, and how far pieces have filled it.
        made: Whether a task has made it, or begun the sum that it accumulates.
        writers: Open tasks that will make it or add to it.
        users: Open tasks that read or write it.
        dropped: Whether the server has forgotten it; freed when the last user ends.
    """

    handle: int
    array: Array
    dtype: DType
    cursor: PrefixCursor
    made: bool = False
    writers: set[int] = field(default_factory=set)
    users: int = 0
    dropped: bool = False

    @property
    def n_bytes(self) -> int:
        """Bytes of its elements."""
        return self.cursor.n_rows * self.cursor.n_cols * self.dtype.itemsize

    @property
    def rows(self) -> int:
        """Whole rows that can be read."""
        return self.cursor.n_rows if self.made else self.cursor.rows

    def is_like(self, n_rows: int, n_cols: int, dtype: DType) -> bool:
        """Whether it has this size and type."""
        return (self.cursor.n_rows, self.cursor.n_cols, self.dtype) == (n_rows, n_cols, dtype)


class BlockStore:
    """Blocks by handle within a budget of bytes, which reservations of tasks share.

    Attributes:
        budget_bytes: What the owner lends.
        held_bytes: Blocks and reservations; never more than the budget.
    """

    def __init__(self, backend: Backend, budget_bytes: int) -> None:
        self._backend = backend
        self._blocks: dict[int, Block] = {}
        self.budget_bytes = budget_bytes
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, handle: int) -> Block | None:
        """The block of this number, None if it is not held."""
        return self._blocks.get(handle)

    def fits(self, n_bytes: int) -> bool:
        """Whether so many bytes more stay within the budget."""
        return self.held_bytes + n_bytes <= self.budget_bytes

    def reserve(self, n_bytes: int) -> None:
        """Count bytes that a task will need; `free` gives them back."""
        self.held_bytes += n_bytes

    def free(self, n_bytes: int) -> None:
        """Give back reserved bytes."""
        self.held_bytes -= n_bytes

    def open(self, handle: int, n_rows: int, n_cols: int, dtype: DType) -> Block:
        """A new block to be filled by pieces.

        Raises:
            MemoryError: If the machine has less memory than its owner lends.
        """
        array = self._backend.empty(n_rows, n_cols, dtype)
        return self._add(handle, array, PrefixCursor(n_rows, n_cols, dtype.itemsize), dtype)

    def promise(self, handle: int, n_rows: int, n_cols: int, dtype: DType) -> Block:
        """A new block that a task will make; its bytes count from now on."""
        return self._add(handle, None, PrefixCursor(n_rows, n_cols, dtype.itemsize), dtype)

    def fill(self, handle: int, piece: Region, payload: memoryview) -> None:
        """Write a piece; one for a block that is not held is ignored.

        Raises:
            ProtocolError: If it leaves a gap or does not fit the block.
        """
        block = self._blocks.get(handle)
        if block is None:
            return
        if block.array is None or block.made:
            raise ProtocolError(f"a piece for block {handle}, which is the output of a task")
        block.cursor.overlay(piece, len(payload))
        self._backend.write(block.array, piece, payload)

    def drop(self, handle: int) -> None:
        """Forget a block; its memory is free once no open task uses it."""
        block = self._blocks.pop(handle, None)
        if block is not None:
            block.dropped = True
            if block.users == 0:
                self._free_block(block)

    def use(self, block: Block) -> None:
        """Keep a block's memory for an open task."""
        block.users += 1

    def unuse(self, block: Block) -> None:
        """The task has ended."""
        block.users -= 1
        if block.dropped and block.users == 0:
            self._free_block(block)

    def _add(self, handle: int, array: Array, cursor: PrefixCursor, dtype: DType) -> Block:
        block = Block(handle=handle, array=array, dtype=dtype, cursor=cursor)
        self._blocks[handle] = block
        self.held_bytes += block.n_bytes
        return block

    def _free_block(self, block: Block) -> None:
        self.held_bytes -= block.n_bytes
        block.array = None
