"""What one device holds, as the server knows it: what must travel, and what is forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cleave.core.matrix import BlockRef, Matrix, Region
from cleave.core.scheduling.events import Fill
from cleave.core.work import Fate, TaskInput, TaskOutput


@dataclass(frozen=True, slots=True)
class Need:
    """A region that a task reads, and the block it is best kept in for the tasks that follow."""

    matrix: Matrix
    view: Region
    home: Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a task gets on a device.

    Attributes:
        inputs: The task's inputs, each inside the block that holds it there.
        handles: The block's number of each input.
        output_handles: The block's number of each output; 0 if it is returned.
        fills: Rows that travel.
        dropped: Blocks that are forgotten to make room.
    """

    inputs: tuple[TaskInput, ...]
    handles: tuple[int, ...]
    output_handles: tuple[int, ...]
    fills: tuple[Fill, ...]
    dropped: tuple[int, ...]


@dataclass(slots=True)
class _Held:
    block: BlockRef
    filled_rows: int
    users: int = 0
    released: bool = False
    pinned: bool = False  # a kept output: there is no copy on the server


@dataclass(slots=True)
class _Load:
    handles: tuple[int, ...]
    reserved_bytes: int


class Ledger:
    """The blocks of one device within its memory budget, least recently used first.

    Rows count as there once they are on their way: frames of one connection arrive in order.
    """

    def __init__(self, budget_bytes: int) -> None:
        """Begin with nothing held."""
        self.budget_bytes = budget_bytes
        self._held: dict[int, _Held] = {}
        self._of_matrix: dict[int, list[int]] = {}
        self._loads: dict[int, _Load] = {}
        self._next_handle = 1
        self.held_bytes = 0
        self._reserved_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Blocks held, and outputs and workspace of the tasks in flight."""
        return self.held_bytes + self._reserved_bytes

    def missing_bytes(self, matrix: Matrix, view: Region) -> int:
        """Bytes that would travel if a task read ``view`` now."""
        return matrix.region_bytes(view) if self._find(matrix, view) is None else 0

    def load(
        self,
        task_id: int,
        needs: Sequence[Need],
        outputs: Sequence[TaskOutput],
        workspace_bytes: int,
    ) -> Loading | None:
        """Make room for a task and say what must travel; None if it does not fit now.

        Blocks are opened as large as their home, if that fits, so that the strips that follow find
        the other rows there; else only as large as the view.
        """
        for roomy in (True, False):
            loading = self._try_load(task_id, needs, outputs, workspace_bytes, roomy)
            if loading is not None:
                return loading
        return None

    def unload(self, task_id: int) -> tuple[int, ...]:
        """The task has ended there, its workspace is free; blocks to drop that nobody needs."""
        load = self._loads.pop(task_id, None)
        if load is None:
            return ()
        self._reserved_bytes -= load.reserved_bytes
        dropped: list[int] = []
        for handle in load.handles:
            held = self._held.get(handle)
            if held is None:
                continue
            held.users -= 1
            if held.released and held.users == 0:
                self._forget(handle)
                dropped.append(handle)
        return tuple(dropped)

    def abandon(self, task_id: int) -> tuple[int, ...]:
        """Refused: what came with it alone is not there; the blocks to drop."""
        load = self._loads.get(task_id)
        dropped = list(self.unload(task_id))
        for handle in () if load is None else dict.fromkeys(load.handles):
            held = self._held.get(handle)
            if held is not None and held.users == 0 and not held.pinned:
                self._forget(handle)
                dropped.append(handle)
        return tuple(dropped)

    def release(self, tensor_id: int) -> tuple[int, ...]:
        """Nobody will read this matrix again: blocks to drop now; those in use follow later."""
        dropped: list[int] = []
        for handle in tuple(self._of_matrix.get(tensor_id, ())):
            held = self._held[handle]
            held.released = True
            held.pinned = False
            if held.users == 0:
                self._forget(handle)
                dropped.append(handle)
        return tuple(dropped)

    def forget(self, handles: Iterable[int]) -> None:
        """The device says that it does not hold these blocks."""
        for handle in handles:
            if handle in self._held:
                self._forget(handle)

    def drop_unused(self) -> tuple[int, ...]:
        """Forget every block that no task in flight uses and the server has too."""
        unused = tuple(h for h, held in self._held.items() if not held.users and not held.pinned)
        for handle in unused:
            self._forget(handle)
        return unused

    def _try_load(
        self,
        task_id: int,
        needs: Sequence[Need],
        outputs: Sequence[TaskOutput],
        workspace_bytes: int,
        roomy: bool,
    ) -> Loading | None:
        found = [self._find(need.matrix, need.view) or self._extend(need) for need in needs]
        regions = [_opening(need) if roomy else need.view for need in needs]
        opened = {
            BlockRef(need.matrix, region)
            for need, region, handle in zip(needs, regions, found, strict=True)
            if handle is None
        }
        kept = {out.block for out in outputs if out.fate is not Fate.RETURNED}
        kept_new = [b for b in kept if self._handle_of(b) is None]
        reserved = workspace_bytes + sum(out.block.n_bytes for out in outputs)
        needed = sum(block.n_bytes for block in opened) + reserved
        needed += sum(block.n_bytes for block in kept_new)
        in_use = {handle for handle in found if handle is not None}
        dropped = self._room_for(needed, in_use)
        if dropped is None:
            return None
        for handle in dropped:
            self._forget(handle)
        fills: list[Fill] = []
        handles: list[int] = []
        inputs: list[TaskInput] = []
        for need, region, old in zip(needs, regions, found, strict=True):
            block = BlockRef(need.matrix, region)
            handle = old or self._handle_of(block) or self._open(block)
            fill = self._fill(handle, need.view)
            if fill is not None:
                fills.append(fill)
            handles.append(handle)
            inputs.append(TaskInput(self._held[handle].block, need.view))
        output_handles = tuple(self._output_handle(out) for out in outputs)
        used = tuple(handles) + tuple(handle for handle in output_handles if handle)
        for handle in used:
            self._held[handle].users += 1
            self._held[handle] = self._held.pop(handle)
        self._reserved_bytes += reserved
        self._loads[task_id] = _Load(used, reserved)
        return Loading(
            inputs=tuple(inputs),
            handles=tuple(handles),
            output_handles=output_handles,
            fills=tuple(fills),
            dropped=dropped,
        )

    def _find(self, matrix: Matrix, view: Region) -> int | None:
        for handle in self._of_matrix.get(matrix.tensor_id, ()):
            held = self._held[handle]
            region = held.block.region
            if region.contains(view) and view.row1 - region.row0 <= held.filled_rows:
                return handle
        return None

    def _extend(self, need: Need) -> int | None:
        # A block grows row after row: the view must begin at or before its last row.
        for handle in self._of_matrix.get(need.matrix.tensor_id, ()):
            held = self._held[handle]
            region = held.block.region
            if region.contains(need.view) and need.view.row0 - region.row0 <= held.filled_rows:
                return handle
        return None

    def _fill(self, handle: int, view: Region) -> Fill | None:
        held = self._held[handle]
        row1 = view.row1 - held.block.region.row0
        if row1 <= held.filled_rows:
            return None
        fill = Fill(handle, held.block, held.filled_rows, row1)
        held.filled_rows = row1
        return fill

    def _handle_of(self, block: BlockRef) -> int | None:
        key = block.matrix.tensor_id
        for handle in self._of_matrix.get(key, ()):
            if self._held[handle].block.region == block.region:
                return handle
        return None

    def _open(self, block: BlockRef, filled_rows: int = 0) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._held[handle] = _Held(block, filled_rows)
        self.held_bytes += block.n_bytes
        key = block.matrix.tensor_id
        self._of_matrix.setdefault(key, []).append(handle)
        return handle

    def _output_handle(self, output: TaskOutput) -> int:
        if output.fate is Fate.RETURNED:
            return 0
        handle = self._handle_of(output.block)
        if handle is None:
            handle = self._open(output.block, output.block.region.n_rows)
            self._held[handle].pinned = True
        return handle

    def _room_for(self, needed: int, in_use: set[int]) -> tuple[int, ...] | None:
        excess = self.used_bytes + needed - self.budget_bytes
        dropped: list[int] = []
        for handle, held in self._held.items():
            if excess <= 0:
                break
            if held.users == 0 and not held.pinned and handle not in in_use:
                dropped.append(handle)
                excess -= held.block.n_bytes
        return tuple(dropped) if excess <= 0 else None

    def _forget(self, handle: int) -> None:
        held = self._held.pop(handle)
        self.held_bytes -= held.block.n_bytes
        key = held.block.matrix.tensor_id
        handles = self._of_matrix[key]
        handles.remove(handle)
        if not handles:
            del self._of_matrix[key]


def _opening(need: Need) -> Region:
    # Rows are filled from the first on: a strip in mid-home need not bring those above it.
    return Region(need.view.row0, need.home.row1, need.home.col0, need.home.col1)
