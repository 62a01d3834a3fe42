"""What one device holds, as the server knows it: what must travel, and what is forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
        fills: Rows that travel.
        dropped: Blocks that are forgotten to make room.
    """

    inputs: tuple[TaskInput, ...]
    handles: tuple[int, ...]
    output_handles: tuple[int, ...]
    fills: tuple[Fill, ...]
    dropped: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Held:
    block: BlockRef
    filled_rows: int
    users: int = 0
    released: bool = False
    output: bool = False  # made there: the server has no copy
    pinned: bool = False  # an output that was accepted


class _Load(msgspec.Struct, frozen=True, gc=False):
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
        handle = self._find(matrix, view)
        if handle is not None:
            held = self._held[handle]
            if view.row1 - held.block.region.row0 <= held.filled_rows:
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
        kept = {out.block for out in outputs if out.fate is not Fate.RETURNED}
        needed = passing_bytes + sum([b.n_bytes for b in kept if self._handle_of(b) is None])
        for is_roomy in (True, False):
            blocks = [
                None if handle else BlockRef(need.matrix, _opening(need) if is_roomy else need.view)
                for need, handle in zip(needs, found, strict=True)
            ]
            opened = sum([block.n_bytes for block in {*blocks} if block is not None])
            dropped = self._room_for(needed + opened, found)
            if dropped is not None:
                for handle in dropped:
                    self._forget(handle)
                self._reserved_bytes += passing_bytes
                loading = self._open_all(needs, blocks, found, outputs, dropped)
                self._loads[task_id] = _Load(self._take(loading), passing_bytes)
                return loading
        return None

    def keep(self, task_id: int) -> None:
        """The task's result was accepted: what it leaves there is held until it is released."""
        for handle in self._loads[task_id].handles:
            held = self._held.get(handle)
            if held is not None and held.output and not held.released:
                held.pinned = True

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
            if held.users == 0 and (held.released or (held.output and not held.pinned)):
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

    def forget(self, handles: Iterable[int]) -> list[BlockRef]:
        """The device says that it does not hold these blocks; those that were kept there alone."""
        lost: list[BlockRef] = []
        for handle in handles:
            held = self._held.get(handle)
            if held is not None:
                self._forget(handle)
                if held.pinned:
                    lost.append(held.block)
        return lost

    def limit(self, budget_bytes: int) -> tuple[int, ...]:
        """Hold no more than this from now on, if no task is in flight; the blocks to drop."""
        dropped = self.drop_unused()
        self.budget_bytes = max(budget_bytes, self.used_bytes)
        return dropped

    def drop_unused(self) -> tuple[int, ...]:
        """Forget every block that no task in flight uses and the server has too."""
        unused = tuple(h for h, held in self._held.items() if not held.users and not held.pinned)
        for handle in unused:
            self._forget(handle)
        return unused

    def _open_all(
        self,
        needs: Sequence[Need],
        blocks: Sequence[BlockRef | None],
        found: Sequence[int | None],
        outputs: Sequence[TaskOutput],
        dropped: tuple[int, ...],
    ) -> Loading:
        fills: list[Fill] = []
        handles: list[int] = []
        inputs: list[TaskInput] = []
        for need, block, handle in zip(needs, blocks, found, strict=True):
            if handle is None and block is not None:
                handle = self._handle_of(block) or self._open(block)
            assert handle is not None, "what was not found is opened"
            held, view = self._held[handle], need.view
            row1 = view.row1 - held.block.region.row0
            if row1 > held.filled_rows:
                fills.append(Fill(handle, held.block, held.filled_rows, row1))
                held.filled_rows = row1
            handles.append(handle)
            inputs.append(TaskInput(held.block, view))
        return Loading(
            inputs=tuple(inputs),
            handles=tuple(handles),
            output_handles=tuple([self._output_handle(out) for out in outputs]),
            fills=tuple(fills),
            dropped=dropped,
        )

    def _take(self, loading: Loading) -> tuple[int, ...]:
        """Count the blocks of a task as in use, and as the latest used."""
        used = loading.handles + tuple([handle for handle in loading.output_handles if handle])
        for handle in used:
            held = self._held.pop(handle)
            held.users += 1
            self._held[handle] = held
        return used

    def _find(self, matrix: Matrix, view: Region) -> int | None:
        """The block that holds a view, or else one that does when further rows are filled."""
        extensible = None
        for handle in self._of_matrix.get(matrix.tensor_id, ()):
            held = self._held[handle]
            region = held.block.region
            if region.contains(view):
                if view.row1 - region.row0 <= held.filled_rows:
                    return handle
                # A block grows row after row: the view must begin at or before its last row.
                if extensible is None and view.row0 - region.row0 <= held.filled_rows:
                    extensible = handle
        return extensible

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
            self._held[handle].output = True
        return handle

    def _room_for(self, needed: int, in_use: Sequence[int | None]) -> tuple[int, ...] | None:
        excess = self.held_bytes + self._reserved_bytes + needed - self.budget_bytes
        if excess <= 0:
            return ()
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
