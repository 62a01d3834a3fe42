"""What one device holds, as the server knows it: what must travel, and what is forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from cleave.core.matrix import BlockRef, Matrix, Region
from cleave.core.scheduling.events import Fill
from cleave.core.work import Fate, TaskInput, TaskOutput


class Need(msgspec.Struct, frozen=True, gc=False):
    """A region that a task reads, and the block it is best kept in for the tasks that follow."""

    matrix: Matrix
    view: Region
    home: Region


class Loading(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How a task gets on a device.

    Attributes:
        inputs: The task's inputs, each inside the block that holds it there.
        handles: The block's number of each input.
        output_handles: The block's number of each output; 0 if it is returned.
        fills: Rows that travel,
        down_bytes: and how many bytes these are.
        dropped: Blocks that are forgotten to make room.
    """

    inputs: tuple[TaskInput, ...]
    handles: tuple[int, ...]
    output_handles: tuple[int, ...]
    fills: tuple[Fill, ...]
    down_bytes: int
    dropped: tuple[int, ...]


class _Held(msgspec.Struct, eq=False, gc=False):
    handle: int
    block: BlockRef
    row_bytes: int
    filled_rows: int
    is_output: bool = False  # made there: the server has no copy
    users: int = 0
    is_released: bool = False
    is_pinned: bool = False  # an output that was accepted

    @property
    def n_bytes(self) -> int:
        return self.row_bytes * self.block.region.n_rows

    @property
    def is_free(self) -> bool:
        """Whether it may be forgotten to make room."""
        return not self.users and not self.is_pinned


class _Load(msgspec.Struct, frozen=True, gc=False):
    used: tuple[_Held, ...]
    passing_bytes: int


class Ledger:
    """The blocks of one device within its memory budget, least recently used first.

    Rows count as there once they are on their way: frames of one connection arrive in order.
    """

    def __init__(self, budget_bytes: int) -> None:
        """Begin with nothing held."""
        self.budget_bytes = budget_bytes
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._of_matrix: dict[int, list[_Held]] = {}
        self._loads: dict[int, _Load] = {}
        self._next_handle = 1
        self.held_bytes = 0
        self._passing_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Blocks held, and outputs and workspace of the tasks in flight."""
        return self.held_bytes + self._passing_bytes

    def holds_any(self, matrix: Matrix) -> bool:
        """Whether any of it is there."""
        return matrix.tensor_id in self._of_matrix

    def missing_bytes(self, matrix: Matrix, view: Region) -> int:
        """Bytes that would travel if a task read ``view`` now."""
        held = self._find(matrix, view)
        if held is not None and view.row1 - held.block.region.row0 <= held.filled_rows:
            return 0
        return matrix.region_bytes(view)

    def load(
        self,
        task_id: int,
        needs: Sequence[Need],
        outputs: Sequence[TaskOutput],
        passing_bytes: int,
    ) -> Loading | None:
        """Make room for a task and say what must travel; None if it does not fit now.

        Blocks are opened as large as their home, if that fits, so that the strips that follow find
        the other rows there; else only as large as the view.

        Args:
            task_id: Which task.
            needs: What it reads.
            outputs: What it makes.
            passing_bytes: Room for its workspace and for outputs that are returned.
        """
        found = [self._find(need.matrix, need.view) for need in needs]
        kept = [out.block for out in outputs if out.fate is not Fate.RETURNED]
        dropped: tuple[int, ...] | None
        if kept or None in found:
            dropped = self._open_missing(needs, kept, found, passing_bytes)
        else:
            dropped = self._make_room(passing_bytes, found)
        if dropped is None:
            return None
        inputs: list[TaskInput] = []
        fills: list[Fill] = []
        down_bytes = 0
        used = [held for held in found if held is not None]
        for held, need in zip(used, needs, strict=True):
            block, view = held.block, need.view
            inputs.append(TaskInput(block, view))
            row0, row1 = held.filled_rows, view.row1 - block.region.row0
            if row1 > row0:
                fills.append(Fill(held.handle, block, row0, row1))
                down_bytes += (row1 - row0) * held.row_bytes
                held.filled_rows = row1
        handles = tuple([held.handle for held in used])
        output_handles = self._output_handles(outputs, used) if kept else (0,) * len(outputs)
        for held in used:
            held.users += 1
            self._held.move_to_end(held.handle)
        self._passing_bytes += passing_bytes
        self._loads[task_id] = _Load(tuple(used), passing_bytes)
        return Loading(
            inputs=tuple(inputs),
            handles=handles,
            output_handles=output_handles,
            fills=tuple(fills),
            down_bytes=down_bytes,
            dropped=dropped,
        )

    def keep(self, task_id: int) -> None:
        """The task's result was accepted: what it leaves there is held until it is released."""
        for held in self._loads[task_id].used:
            if held.is_output and not held.is_released:
                held.is_pinned = True

    def unload(self, task_id: int) -> tuple[int, ...]:
        """The task has ended there, its workspace is free; blocks to drop that nobody needs."""
        load = self._loads.pop(task_id, None)
        if load is None:
            return ()
        self._passing_bytes -= load.passing_bytes
        dropped: list[int] = []
        for held in load.used:
            held.users -= 1
            is_spare = held.is_released or (held.is_output and not held.is_pinned)
            if is_spare and not held.users and self._forget(held):
                dropped.append(held.handle)
        return tuple(dropped)

    def abandon(self, task_id: int) -> tuple[int, ...]:
        """Refused: what came with it alone is not there; the blocks to drop."""
        load = self._loads.get(task_id)
        dropped = list(self.unload(task_id))
        for held in () if load is None else load.used:
            if held.is_free and self._forget(held):
                dropped.append(held.handle)
        return tuple(dropped)

    def release(self, tensor_id: int) -> tuple[int, ...]:
        """Nobody will read this matrix again: blocks to drop now; those in use follow later."""
        dropped: list[int] = []
        for held in tuple(self._of_matrix.get(tensor_id, ())):
            held.is_released = True
            held.is_pinned = False
            if not held.users:
                self._forget(held)
                dropped.append(held.handle)
        return tuple(dropped)

    def forget(self, handles: Iterable[int]) -> bool:
        """The device says that it does not hold these blocks; whether others can be sent for all.

        What is made there is nowhere else, and so stays in the book.
        """
        disowned = [self._held[handle] for handle in handles if handle in self._held]
        for held in disowned:
            if not held.is_output:
                self._forget(held)
        return not any(held.is_output for held in disowned)

    def limit(self, budget_bytes: int) -> tuple[int, ...]:
        """Hold no more than this from now on, if no task is in flight; the blocks to drop."""
        unused = [held for held in self._held.values() if held.is_free]
        for held in unused:
            self._forget(held)
        self.budget_bytes = max(budget_bytes, self.used_bytes)
        return tuple([held.handle for held in unused])

    def _find(self, matrix: Matrix, view: Region) -> _Held | None:
        """The block that holds a view, or else one that does when further rows are filled."""
        extensible = None
        row0, row1, col0, col1 = view.row0, view.row1, view.col0, view.col1
        for held in self._of_matrix.get(matrix.tensor_id, ()):
            region = held.block.region
            top = region.row0
            if top <= row0 and row1 <= region.row1 and region.col0 <= col0 and col1 <= region.col1:
                if row1 - top <= held.filled_rows:
                    return held
                # A block grows row after row: the view must begin at or before its last row.
                if extensible is None and row0 - top <= held.filled_rows:
                    extensible = held
        return extensible

    def _open_missing(
        self,
        needs: Sequence[Need],
        kept: Sequence[BlockRef],
        found: list[_Held | None],
        passing_bytes: int,
    ) -> tuple[int, ...] | None:
        """Open a block for each need that has none, in ``found``; what was dropped, or None."""
        lacking = [i for i, held in enumerate(found) if held is None]
        new_bytes = sum(block.n_bytes for block in {*kept} if self._held_as(block) is None)
        for is_roomy in (True, False):
            blocks = [
                BlockRef(needs[i].matrix, _opening(needs[i]) if is_roomy else needs[i].view)
                for i in lacking
            ]
            needed = passing_bytes + new_bytes + sum(block.n_bytes for block in {*blocks})
            dropped = self._make_room(needed, found)
            if dropped is not None:
                for i, block in zip(lacking, blocks, strict=True):
                    found[i] = self._held_as(block) or self._open(block)
                return dropped
        return None

    def _make_room(self, needed: int, in_use: Sequence[_Held | None]) -> tuple[int, ...] | None:
        """Forget what was used longest ago until so much is free; None, and nothing, in vain."""
        excess = self.held_bytes + self._passing_bytes + needed - self.budget_bytes
        if excess <= 0:
            return ()
        dropped: list[_Held] = []
        for held in self._held.values():
            if held.is_free and held not in in_use:
                dropped.append(held)
                excess -= held.n_bytes
                if excess <= 0:
                    break
        else:
            return None
        for held in dropped:
            self._forget(held)
        return tuple([held.handle for held in dropped])

    def _held_as(self, block: BlockRef) -> _Held | None:
        for held in self._of_matrix.get(block.matrix.tensor_id, ()):
            if held.block.region == block.region:
                return held
        return None

    def _open(self, block: BlockRef, *, is_output: bool = False) -> _Held:
        handle = self._next_handle
        self._next_handle += 1
        region = block.region
        row_bytes = region.n_cols * block.matrix.dtype.itemsize
        held = _Held(handle, block, row_bytes, region.n_rows if is_output else 0, is_output)
        self._held[handle] = held
        self.held_bytes += held.n_bytes
        self._of_matrix.setdefault(block.matrix.tensor_id, []).append(held)
        return held

    def _output_handles(self, outputs: Sequence[TaskOutput], used: list[_Held]) -> tuple[int, ...]:
        """The number of each output's block, 0 if it is returned; the blocks join those in use."""
        handles: list[int] = []
        for output in outputs:
            if output.fate is Fate.RETURNED:
                handles.append(0)
            else:
                held = self._held_as(output.block) or self._open(output.block, is_output=True)
                handles.append(held.handle)
                used.append(held)
        return tuple(handles)

    def _forget(self, held: _Held) -> bool:
        """Hold a block no more; whether it was held."""
        if self._held.pop(held.handle, None) is None:
            return False
        self.held_bytes -= held.n_bytes
        key = held.block.matrix.tensor_id
        of_matrix = self._of_matrix[key]
        of_matrix.remove(held)
        if not of_matrix:
            del self._of_matrix[key]
        return True


def _opening(need: Need) -> Region:
    # Rows are filled from the first on: a strip in mid-home need not bring those above it.
    if need.home is need.view:
        return need.view
    return Region(need.view.row0, need.home.row1, need.home.col0, need.home.col1)
