"""What can happen to the scheduler, and what it answers with. Facts in, orders out.

Structs of msgspec, as they are made several times faster than dataclasses, and have no part in
cycles that a garbage collector would have to look for.
"""

from __future__ import annotations

from typing import Union

import msgspec

from cleave.core.device import DeviceProfile
from cleave.core.layout import Layout
from cleave.core.matrix import BlockRef, Region
from cleave.core.work import Task, Work

# Events ------------------------------------------------------------------------------------------


class DeviceJoined(msgspec.Struct, frozen=True, gc=False):
    """A device passed admission and may be given tasks."""

    profile: DeviceProfile


class DeviceLeft(msgspec.Struct, frozen=True, gc=False):
    """A device's connection is gone; its unfinished tasks are to be done elsewhere."""

    device_id: int
    reason: str


class DevicePaused(msgspec.Struct, frozen=True, gc=False):
    """A device's owner comes first for now; it has dropped what it had not finished."""

    device_id: int
    reason: str


class DeviceResumed(msgspec.Struct, frozen=True, gc=False):
    """A paused device may be given tasks again."""

    device_id: int


class WorkSubmitted(msgspec.Struct, frozen=True, gc=False):
    """Work to be cut and done.

    Attributes:
        work_id: Chosen by the submitter, never used twice.
        forms: The same result over other rectangles; the one that is done first is taken.
        hints: How related work was laid out, per form: `()` or a layout over that form's rectangle.
            Its blocks may still lie on the devices, so the same cut can be the cheapest.
        after: Work that must be done first (its results are inputs here).
        pinned: The work must be done where ``after`` left its kept blocks: tile for tile.

    What is kept on devices alone is made again if a device goes, so the inputs of work that keeps
    results are to be released only after those results.
    """

    work_id: int
    forms: tuple[Work, ...]
    hints: tuple[Layout, ...] = ()
    after: tuple[int, ...] = ()
    pinned: bool = False


class MatrixReleased(msgspec.Struct, frozen=True, gc=False):
    """Nobody will read this matrix again: devices may forget its blocks."""

    tensor_id: int


class TaskFinished(msgspec.Struct, frozen=True, gc=False):
    """All returned outputs of a task have arrived whole from a device."""

    device_id: int
    task_id: int
    compute_s: float


class TaskRefused(msgspec.Struct, frozen=True, gc=False):
    """A device will not run a task: ``"memory"``, ``"paused"``, or ``"missing"`` blocks."""

    device_id: int
    task_id: int
    reason: str
    missing: tuple[int, ...] = ()


class TaskFailed(msgspec.Struct, frozen=True, gc=False):
    """A device tried a task and met an error."""

    device_id: int
    task_id: int
    error: str


class TaskCancelled(msgspec.Struct, frozen=True, gc=False):
    """A device has dropped a task that it was told to cancel."""

    device_id: int
    task_id: int


class HostFinished(msgspec.Struct, frozen=True, gc=False):
    """The host has done a task."""

    task_id: int


class HostFailed(msgspec.Struct, frozen=True, gc=False):
    """The host could not do a task either."""

    task_id: int
    error: str


class DeadlinePassed(msgspec.Struct, frozen=True, gc=False):
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


class Fill(msgspec.Struct, frozen=True, gc=False):
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


class SendTask(msgspec.Struct, frozen=True, gc=False):
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


class CancelTask(msgspec.Struct, frozen=True, gc=False):
    """Tell a device that a task's result is no longer wanted; it answers in any case."""

    device_id: int
    task_id: int


class DropBlocks(msgspec.Struct, frozen=True, gc=False):
    """Tell a device to forget blocks."""

    device_id: int
    handles: tuple[int, ...]


class AcceptResult(msgspec.Struct, frozen=True, gc=False):
    """The result of this task from this device counts; from any other it no longer does.

    Told once for every cell of a work, also if a device then loses what it kept there.
    """

    device_id: int
    task_id: int
    work_id: int
    tile: Region


class RunOnHost(msgspec.Struct, frozen=True, gc=False):
    """No device can do this task: the host does."""

    task: Task
    work_id: int


class CompleteWork(msgspec.Struct, frozen=True, gc=False):
    """Every cell of the work has been accepted."""

    work_id: int
    form: int
    layout: Layout


class FailWork(msgspec.Struct, frozen=True, gc=False):
    """The work cannot be done; nothing of it is left running."""

    work_id: int
    error: str


class CloseDevice(msgspec.Struct, frozen=True, gc=False):
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
