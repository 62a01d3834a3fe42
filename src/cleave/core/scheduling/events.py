"""What can happen to the scheduler, and what it answers with. Facts in, orders out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from cleave.core.device import DeviceProfile
from cleave.core.layout import Layout
from cleave.core.matrix import BlockRef, Region
from cleave.core.work import Task, Work

# Events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceJoined:
    """A device passed admission and may be given tasks."""

    profile: DeviceProfile


@dataclass(frozen=True, slots=True)
class DeviceLeft:
    """A device's connection is gone; its unfinished tasks are to be done elsewhere."""

    device_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class DevicePaused:
    """A device's owner comes first for now; it has dropped what it had not finished."""

    device_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceResumed:
    """A paused device may be given tasks again."""

    device_id: int


@dataclass(frozen=True, slots=True)
class WorkSubmitted:
    """Work to be cut and done.

    Attributes:
        work_id: Chosen by the submitter, never used twice.
        forms: The same result over other rectangles; the one that is done first is taken.
        hints: How related work was laid out, per form: `()` or a layout over that form's rectangle.
            Its blocks may still lie on the devices, so the same cut can be the cheapest.
        after: Work that must be done first (its results are inputs here).
        pinned: The work must be done where ``after`` left its kept blocks: tile for tile.
    """

    work_id: int
    forms: tuple[Work, ...]
    hints: tuple[Layout, ...] = ()
    after: tuple[int, ...] = ()
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class MatrixReleased:
    """Nobody will read this matrix again: devices may forget its blocks."""

    tensor_id: int


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """All returned outputs of a task have arrived whole from a device."""

    device_id: int
    task_id: int
    compute_s: float


@dataclass(frozen=True, slots=True)
class TaskRefused:
    """A device will not run a task: ``"memory"``, ``"paused"``, or ``"missing"`` blocks."""

    device_id: int
    task_id: int
    reason: str
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A device tried a task and met an error."""

    device_id: int
    task_id: int
    error: str


@dataclass(frozen=True, slots=True)
class TaskCancelled:
    """A device has dropped a task that it was told to cancel."""

    device_id: int
    task_id: int


@dataclass(frozen=True, slots=True)
class HostFinished:
    """The host has done a task."""

    task_id: int


@dataclass(frozen=True, slots=True)
class HostFailed:
    """The host could not do a task either."""

    task_id: int
    error: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The time named by `Scheduler.next_deadline_s` has come."""


Event = Union[
    DeviceJoined,
    DeviceLeft,
    DevicePaused,
    DeviceResumed,
    WorkSubmitted,
    MatrixReleased,
    TaskFinished,
    TaskRefused,
    TaskFailed,
    TaskCancelled,
    HostFinished,
    HostFailed,
    DeadlinePassed,
]


# Commands ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fill:
    """Rows ``row0:row1`` of a block that must travel before the task can run.

    Attributes:
        handle: The block's number on that device.
        block: What it is.
        row0: First row, counted inside the block; all rows before it are already there.
        row1: One past the last row.
    """

    handle: int
    block: BlockRef
    row0: int
    row1: int

    @property
    def n_bytes(self) -> int:
        """Bytes that travel."""
        region = self.block.region
        return (self.row1 - self.row0) * region.n_cols * self.block.matrix.dtype.itemsize


@dataclass(frozen=True, slots=True)
class SendTask:
    """Send a task and the rows it lacks to a device.

    Attributes:
        device_id: To whom.
        work_id: What the task is part of.
        task: What to run.
        handles: The number of each input's block on that device, in order.
        output_handles: Likewise of each output; 0 where it is returned.
        fills: The rows that travel.
    """

    device_id: int
    work_id: int
    task: Task
    handles: tuple[int, ...]
    output_handles: tuple[int, ...]
    fills: tuple[Fill, ...]


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Tell a device that a task's result is no longer wanted; it answers in any case."""

    device_id: int
    task_id: int


@dataclass(frozen=True, slots=True)
class DropBlocks:
    """Tell a device to forget blocks."""

    device_id: int
    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AcceptResult:
    """The result of this task from this device counts; from any other it no longer does."""

    device_id: int
    task_id: int
    work_id: int
    tile: Region


@dataclass(frozen=True, slots=True)
class RunOnHost:
    """No device can do this task: the host does."""

    task: Task
    work_id: int


@dataclass(frozen=True, slots=True)
class CompleteWork:
    """Every cell of the work has been accepted."""

    work_id: int
    form: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class FailWork:
    """The work cannot be done; nothing of it is left running."""

    work_id: int
    error: str


@dataclass(frozen=True, slots=True)
class CloseDevice:
    """Part with a device that does more harm than good."""

    device_id: int
    reason: str


Command = Union[
    SendTask,
    CancelTask,
    DropBlocks,
    AcceptResult,
    RunOnHost,
    CompleteWork,
    FailWork,
    CloseDevice,
]
