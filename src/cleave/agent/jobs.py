"""An agent's open tasks: what each waits for, what it may use, and what to answer. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from cleave.agent.store import Block, BlockStore
from cleave.core.matrix import Region
from cleave.core.work import Fate
from cleave.errors import DeviceMemoryError, ProtocolError
from cleave.wire.messages import InputSpec, OutputSpec, Refused, RunTask


class Wish(Enum):
    """What the server wants of a job."""

    RESULT = "its result"
    CANCELLED = "only to hear that it has ended"
    NOTHING = "nothing: it was told that all is dropped"


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A task as the agent sees it.

    Attributes:
        task: The task.
        inputs: The block and the view of each input.
        targets: The block of each output that is kept or added; None for those returned.
        reserved_bytes: Outputs and workspace.
        after: Open tasks that make what it reads.
        wish: What the server wants of it.
    """

    task: RunTask
    inputs: tuple[tuple[Block, Region], ...]
    targets: tuple[Block | None, ...]
    reserved_bytes: int
    after: set[int] = field(default_factory=set)
    wish: Wish = Wish.RESULT

    @property
    def task_id(self) -> int:
        """Its task's number."""
        return self.task.task_id

    @property
    def is_ready(self) -> bool:
        """Whether every row that it reads is there."""
        return not self.after and all(view.row1 <= block.rows for block, view in self.inputs)

    @property
    def leaves_blocks(self) -> bool:
        """Whether blocks on this device are changed by it."""
        return any(target is not None for target in self.targets)


class JobBook:
    """Open jobs, each in one of two states: waiting for rows, or given out by `take_ready`.

    Every accepted job ends with `close`, exactly once.
    """

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._waiting: dict[int, Job] = {}
        self._given: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._given)

    def accept(self, task: RunTask) -> list[Refused]:
        """Open a job and allocate its blocks; or refusals, of this task and of those it upsets.

        Raises:
            ProtocolError: If the task is open already, or contradicts what is known of a block.
        """
        if task.task_id in self._waiting or task.task_id in self._given:
            raise ProtocolError(f"task {task.task_id} is open already")
        missing = {spec.handle for spec in task.inputs if not self._has(spec)}
        if missing:
            refusals = self.drop(sorted(missing))
            return [self.refuse(task, "missing"), *refusals]
        needed_bytes = self._needed_bytes(task)
        if not self._store.fits(needed_bytes):
            return [self.refuse(task, "memory", needed_bytes)]
        try:
            self._waiting[task.task_id] = self._open(task)
        except (MemoryError, DeviceMemoryError):
            return [self.refuse(task, "memory", needed_bytes)]
        return []

    def refuse(self, task: RunTask, reason: str, needed_bytes: int = 0) -> Refused:
        """The refusal of a task that is not open; it names the blocks that are not held."""
        handles = [spec.handle for spec in task.inputs]
        handles += [spec.handle for spec in task.outputs if spec.handle]
        missing = sorted({handle for handle in handles if self._store.get(handle) is None})
        return Refused(
            task_id=task.task_id,
            reason=reason,
            missing=tuple(missing),
            needed_bytes=needed_bytes,
        )

    def take_ready(self) -> list[Job]:
        """The waiting jobs whose inputs are all there; they count as given out now."""
        ready = [job for job in self._waiting.values() if job.is_ready]
        for job in ready:
            self._given[job.task_id] = self._waiting.pop(job.task_id)
        return ready

    def drop(self, handles: Iterable[int]) -> list[Refused]:
        """Forget blocks; jobs that wait for rows of them are refused."""
        gone = set(handles)
        for handle in handles:
            self._store.drop(handle)
        upset = [
            job
            for job in self._waiting.values()
            if any(block.handle in gone and view.row1 > block.rows for block, view in job.inputs)
        ]
        return self._refuse_open(upset)

    def find(self, task_id: int) -> Job | None:
        """The open job of a task."""
        return self._waiting.get(task_id) or self._given.get(task_id)

    def is_waiting(self, job: Job) -> bool:
        """Whether it still waits for rows."""
        return self._waiting.get(job.task_id) is job

    def waiting(self) -> list[Job]:
        """The jobs that wait for rows."""
        return list(self._waiting.values())

    def given(self) -> list[Job]:
        """The jobs that were given out."""
        return list(self._given.values())

    def abandon(self, job: Job) -> None:
        """Nobody wants to hear of it any more; its number may be used anew."""
        job.wish = Wish.NOTHING
        self._given.pop(job.task_id, None)

    def made(self, job: Job) -> None:
        """Its kept and added outputs are in their blocks: what waits for them may run."""
        for target in job.targets:
            if target is not None:
                target.made = True
                target.writers.discard(job.task_id)
        for other in self._waiting.values():
            other.after.discard(job.task_id)

    def close(self, job: Job) -> list[Refused]:
        """End a job and free what it reserved; jobs that wait for what it did not make are refused.

        Blocks that only it would have made are forgotten.
        """
        for jobs in (self._waiting, self._given):
            if jobs.get(job.task_id) is job:
                del jobs[job.task_id]
        self._store.free(job.reserved_bytes)
        for block in self._blocks_of(job):
            self._store.unuse(block)
        for target in job.targets:
            if target is not None and job.task_id in target.writers:
                target.writers.discard(job.task_id)
                if not target.made and not target.writers:
                    self._store.drop(target.handle)
        upset = [other for other in self._waiting.values() if job.task_id in other.after]
        return self._refuse_open(upset)

    def _refuse_open(self, jobs: Iterable[Job]) -> list[Refused]:
        refusals: list[Refused] = []
        for job in jobs:
            if job.task_id in self._waiting:
                further = self.close(job)
                refusals.append(self.refuse(job.task, "missing"))
                refusals.extend(further)
        return refusals

    def _has(self, spec: InputSpec) -> bool:
        block = self._store.get(spec.handle)
        if block is None:
            return spec.resident_rows == 0
        self._check_like(block, spec)
        return bool(block.writers) or block.rows >= spec.resident_rows

    def _check_like(self, block: Block, spec: InputSpec | OutputSpec) -> None:
        if not block.is_like(spec.n_rows, spec.n_cols, spec.dtype):
            cursor = block.cursor
            raise ProtocolError(
                f"block {spec.handle} is {cursor.n_rows} x {cursor.n_cols} {block.dtype.value}, "
                f"a task says {spec.n_rows} x {spec.n_cols} {spec.dtype.value}"
            )

    def _needed_bytes(self, task: RunTask) -> int:
        specs: list[InputSpec | OutputSpec] = [*task.inputs, *task.outputs]
        new = {
            spec.handle: _n_bytes(spec)
            for spec in specs
            if spec.handle and self._store.get(spec.handle) is None
        }
        return sum(new.values()) + _reserved_bytes(task)

    def _open(self, task: RunTask) -> Job:
        inputs: list[tuple[Block, Region]] = []
        opened: list[Block] = []
        try:
            for spec in task.inputs:
                block = self._store.get(spec.handle)
                if block is None:
                    block = self._store.open(spec.handle, spec.n_rows, spec.n_cols, spec.dtype)
                    opened.append(block)
                self._check_like(block, spec)
                inputs.append((block, Region(spec.row0, spec.row1, spec.col0, spec.col1)))
        except (MemoryError, DeviceMemoryError):
            for block in opened:
                self._store.drop(block.handle)
            raise
        after = {writer for block, _ in inputs for writer in block.writers}
        job = Job(
            task=task,
            inputs=tuple(inputs),
            targets=tuple(self._target(task.task_id, spec) for spec in task.outputs),
            reserved_bytes=_reserved_bytes(task),
            after=after,
        )
        self._store.reserve(job.reserved_bytes)
        for block in self._blocks_of(job):
            self._store.use(block)
        return job

    def _target(self, task_id: int, spec: OutputSpec) -> Block | None:
        if spec.fate is Fate.RETURNED:
            return None
        block = self._store.get(spec.handle)
        if block is None:
            block = self._store.promise(spec.handle, spec.n_rows, spec.n_cols, spec.dtype)
        self._check_like(block, spec)
        block.writers.add(task_id)
        return block

    @staticmethod
    def _blocks_of(job: Job) -> list[Block]:
        targets = [target for target in job.targets if target is not None]
        return [block for block, _ in job.inputs] + targets


def _n_bytes(spec: InputSpec | OutputSpec) -> int:
    return spec.n_rows * spec.n_cols * spec.dtype.itemsize


def _reserved_bytes(task: RunTask) -> int:
    # An output that is kept or added exists beside its block for a while.
    return task.workspace_bytes + sum(_n_bytes(spec) for spec in task.outputs)
